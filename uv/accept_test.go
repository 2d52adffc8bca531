package uv

import (
	"context"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// TestAcceptClearsTheDeadline checks that after a cancelled call of accept, which sets the socket's
// deadline, another call still returns a connection.
func TestAcceptClearsTheDeadline(t *testing.T) {
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	l := newListener(tcp, wait.Config{})
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.accept(ctx)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	c, err := net.Dial("tcp", l.Addr())
	require.NoError(t, err)
	defer c.Close()
	accepted, err := l.Accept(t.Context())
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
}
