package errtext

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The text of a joined error has one line, and each text once. Join(nil) is nil.
func TestJoin(t *testing.T) {
	require.NoError(t, Join())
	require.NoError(t, Join(nil, nil))
	require.Equal(t, io.EOF, Join(nil, io.EOF, nil))

	err := Join(io.EOF, nil, fs.ErrExist, errors.New("EOF"))
	require.EqualError(t, err, "EOF; file already exists")
	require.ErrorIs(t, err, io.EOF)
	require.ErrorIs(t, err, fs.ErrExist)
}

func TestNew(t *testing.T) {
	err := New("no more", io.EOF, fs.ErrExist)
	require.EqualError(t, err, "no more")
	require.ErrorIs(t, err, io.EOF)
	require.ErrorIs(t, err, fs.ErrExist)
}

// OfNetwork leaves out what the address addr says already, OfConnection all addresses.
func TestOfNetwork(t *testing.T) {
	refused := &net.OpError{
		Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1},
		Err: os.NewSyscallError("connect", syscall.ECONNREFUSED),
	}
	require.Equal(t, "connection refused", OfNetwork(refused, "127.0.0.1:1"))
	require.Equal(t, "127.0.0.1:1: connection refused", OfNetwork(refused, "localhost:1"))
	require.Equal(t, "closed", OfNetwork(&net.OpError{Op: "dial", Net: "tcp", Err: errors.New("closed")}, "h:1"))
	require.Equal(t, "EOF", OfNetwork(io.EOF, "127.0.0.1:1"))

	require.Equal(t, "connection refused", OfConnection(refused))
	require.Equal(t, "again: connection refused", OfConnection(fmt.Errorf("again: %w", refused)))
	require.Equal(t, "EOF", OfConnection(io.EOF))
}
