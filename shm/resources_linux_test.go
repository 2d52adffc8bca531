package shm

import (
	"io"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/socket"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// unconnected returns the descriptors of n sockets, with which the process can dial without opening
// others. They are closed when the test ends.
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

// requireEnded connects socket to l, whose process has no descriptors left. It checks that l closes
// the connection, and that Accept returns one whose calls fail with EMFILE.
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

// A listener without a descriptor for a connection closes the connection and reports the reason. It
// accepts connections when it has descriptors again.
func TestListenerWithoutDescriptors(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	leakcheck.Check(t)
	l := listen(t)
	sockets := unconnected(t, 3)
	lift := limitDescriptors(t, 0)
	for _, socket := range sockets {
		requireEnded(t, l, socket)
	}
	lift()
	wantAccepted(t, l)
}

// Close of a listener returns while the process has no descriptors left and the listener waits for
// a client to reject.
func TestListenerWithoutDescriptorsCloses(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	leakcheck.Check(t)
	l := listen(t)
	sockets := unconnected(t, 1)
	lift := limitDescriptors(t, 0)
	requireEnded(t, l, sockets[0])
	require.NoError(t, l.Close())
	lift()
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
}

func TestOtherUserDials(t *testing.T) {
	needRoot(t)
	l, err := New().Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	p := start(t, "other user dials", l.Addr())
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.NextFrame()
	require.ErrorIs(t, err, ErrOtherUser)
	require.ErrorIs(t, c.ReadBody(), ErrOtherUser)
	require.ErrorIs(t, c.WriteFrames(), ErrOtherUser)
	require.NoError(t, c.CloseWrite())
	var failed *HandshakeError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, c.RemoteAddr(), failed.Peer)
	require.Contains(t, p.line(t), "shm: dial "+l.Addr())
	p.finish(t)
	require.NoError(t, c.Close())
	_, err = c.NextFrame()
	require.ErrorIs(t, err, transport.ErrClosed)
}

func TestOtherUserListens(t *testing.T) {
	needRoot(t)
	p := start(t, "other user listens", "")
	addr := p.line(t)
	_, err := New().Dial(t.Context(), addr)
	require.ErrorIs(t, err, ErrOtherUser)
	require.ErrorContains(t, err, addr)
	p.finish(t)
}

func TestOtherUserIsAllowed(t *testing.T) {
	needRoot(t)
	c, p := acceptFrom(t, "other user dials", WithOtherUsers())
	id, err := c.(transport.Identified).PeerIdentity()
	require.NoError(t, err)
	require.Equal(t, otherUser, id.Process.UID)
	require.NoError(t, c.WriteFrames(transport.Frame{[]byte("hello")}))
	wantFrame(t, c, []byte("hello"))
	require.NoError(t, c.CloseWrite())
	p.finish(t)
}

// failSends makes the first doorbells of c, as many as times, fail for lack of memory.
func failSends(c *conn, times int) {
	c.writeDoorbell = func(fd uintptr) {
		writeDoorbell(fd, func(fd uintptr) error {
			if times--; times >= 0 {
				return unix.ENOBUFS
			}
			return sendDoorbell(fd)
		})
	}
}

// sleeping starts NextFrame of c, waits until it blocks, and returns a channel that receives its
// error.
func sleeping(c *conn) <-chan error {
	read := testwait.Start(func() error {
		_, err := c.NextFrame()
		return err
	})
	for c.ownInbox.marker().Load()&readerBlocked == 0 {
		runtime.Gosched()
	}
	return read
}

// A doorbell that fails for lack of memory is sent again.
func TestDoorbellIsSentAgain(t *testing.T) {
	leakcheck.Check(t)
	ends, _ := connWithFiles(t)
	failSends(ends[0], socket.MaxRetries)
	read := sleeping(ends[1])
	require.NoError(t, ends[0].WriteFrames(transport.Frame{[]byte("wake up")}))
	require.NoError(t, testwait.Finish(t, read))
}

// If a doorbell fails for lack of memory more often than it is retried, the connection ends at both
// ends.
func TestDoorbellWithoutMemory(t *testing.T) {
	leakcheck.Check(t)
	ends, _ := connWithFiles(t)
	failSends(ends[0], socket.MaxRetries+1)
	read := sleeping(ends[1])
	require.NoError(t, ends[0].WriteFrames(transport.Frame{}))
	require.NoError(t, testwait.Finish(t, read), "it was in the ring")
	_, err := ends[0].NextFrame()
	require.Equal(t, io.EOF, err)
	_, err = ends[1].NextFrame()
	require.Equal(t, io.EOF, err)
	<-ends[0].receiveDone
	require.ErrorIs(t, ends[0].WriteFrames(transport.Frame{}), syscall.EPIPE)
}
