package wait_test

import (
	"bytes"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// TryWrite returns how many bytes of its pieces the socket has accepted. If the caller writes the
// remainder, no bytes are lost.
func TestTryWrite(t *testing.T) {
	_, near, far := pair(t, wait.Config{})
	w, err := wait.NewWriter(near)
	require.NoError(t, err)
	data := bytes.Repeat([]byte("tensor"), 4<<20)
	pieces := [][]byte{data[:10], nil, data[10:500], {}}
	for rest := data[500:]; len(rest) > 0; rest = rest[min(len(rest), 10_007):] {
		pieces = append(pieces, rest[:min(len(rest), 10_007)])
	}
	require.Greater(t, len(pieces), 1024, "more than one system call takes")
	n, err := w.TryWrite(pieces...)
	require.NoError(t, err)
	require.Positive(t, n)
	require.Less(t, n, len(data), "it does not wait for the reader")
	again, err := w.TryWrite(data[n:])
	require.NoError(t, err)
	n += again
	got := make([]byte, n)
	_, err = io.ReadFull(far, got)
	require.NoError(t, err)
	require.Equal(t, data[:n], got)
}

func TestTryWriteFails(t *testing.T) {
	_, near, _ := pair(t, wait.Config{})
	w, err := wait.NewWriter(near)
	require.NoError(t, err)
	require.NoError(t, near.CloseWrite())
	_, err = w.TryWrite([]byte("too late"))
	require.ErrorIs(t, err, syscall.EPIPE)
	n, err := w.TryWrite(nil)
	require.NoError(t, err, "the error of an earlier call")
	require.Zero(t, n)
	require.NoError(t, near.Close())
	_, err = w.TryWrite([]byte("too late"))
	require.ErrorContains(t, err, "use of closed network connection")
}

func TestTryWriteAllocatesNothing(t *testing.T) {
	_, near, far := pair(t, wait.Config{})
	w, err := wait.NewWriter(near)
	require.NoError(t, err)
	pieces, got := [][]byte{[]byte("sm"), []byte("all")}, make([]byte, 5)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = w.TryWrite(pieces...)
		_, _ = io.ReadFull(far, got)
	}))
	require.Equal(t, "small", string(got))
}
