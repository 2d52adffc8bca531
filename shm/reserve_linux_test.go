package shm

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/alone"
	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// unconnected returns sockets that can dial without another descriptor.
func unconnected(t *testing.T, n int) (all []int) {
	t.Helper()
	for range n {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		all = append(all, fd)
	}
	return all
}

// requireEnded dials a listener whose process has no descriptors.
func requireEnded(t *testing.T, l transport.Listener, socket int) {
	t.Helper()
	require.NoError(t, unix.Connect(socket, &unix.SockaddrUnix{Name: "@" + l.Addr()}))
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	_, err = c.NextFrame()
	require.ErrorIs(t, err, unix.EMFILE)
	n, _ := unix.Read(socket, make([]byte, 1))
	require.LessOrEqual(t, n, 0, "the connection goes on")
}

// A listener without a descriptor for a connection closes it, each time, and reports the
// reason. It accepts connections when it has descriptors again.
func TestListenerWithoutDescriptors(t *testing.T) {
	if !alone.Here(t) {
		return
	}
	leakcheck.Check(t)
	l := listen(t)
	sockets := unconnected(t, 3)
	lift := leaveDescriptors(t, 0)
	for _, socket := range sockets {
		requireEnded(t, l, socket)
	}
	lift()
	wantWelcome(t, l)
}

// It closes while it waits for a connection that it could end.
func TestListenerWithoutDescriptorsCloses(t *testing.T) {
	if !alone.Here(t) {
		return
	}
	leakcheck.Check(t)
	l := listen(t)
	sockets := unconnected(t, 1)
	lift := leaveDescriptors(t, 0)
	requireEnded(t, l, sockets[0])
	require.NoError(t, l.Close())
	lift()
}
