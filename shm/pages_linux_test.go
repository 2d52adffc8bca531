package shm

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/alone"
	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// resident is how many bytes of a file in memory have pages.
func resident(t *testing.T, f *os.File) int {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(f.Fd()), &st))
	return int(st.Blocks) * 512
}

// inspected returns the ends of a connection, and the inbox of each as a file.
func inspected(t *testing.T, opts ...Option) (ends [2]*conn, inboxes [2]*os.File) {
	t.Helper()
	one, other, err := socketPair()
	require.NoError(t, err)
	tr := New(opts...)
	shakes := [2]*handshake{newHandshake(tr, one), newHandshake(tr, other)}
	for i, h := range shakes {
		require.NoError(t, h.prepare())
		inboxes[i] = file(t, func() (int, error) { return unix.Dup(int(h.mine.data.File().Fd())) })
		require.NoError(t, h.greet())
	}
	for i, h := range shakes {
		require.NoError(t, h.take())
		require.NoError(t, h.complete())
		ends[i], err = newConn(h, "", "")
		require.NoError(t, err)
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends, inboxes
}

// A connection that becomes a session after a few words takes no more memory than
// those need. A direction in which there is more to say gets all of it.
func TestInboxHoldsLittle(t *testing.T) {
	leakcheck.Check(t)
	ends, inboxes := inspected(t)
	send := func(size int) {
		require.NoError(t, ends[0].WriteFrames(transport.Frame{make([]byte, size)}))
		wantFrame(t, ends[1], make([]byte, size))
	}
	send(100)
	send(inboxBegin - 100 - 2*headerSize)
	require.Equal(t, inboxBegin, resident(t, inboxes[1]))
	send(1)
	require.Equal(t, inboxSize, resident(t, inboxes[1]))
	require.Equal(t, inboxBegin, resident(t, inboxes[0]))
}

// Where the system cannot set pages aside later, as Linux before 5.14, an inbox has all
// from the start, and nobody asks for more.
func TestInboxOfAnOldKernelIsComplete(t *testing.T) {
	if !alone.Here(t) {
		return
	}
	require.NoError(t, alone.Forbid(unix.SYS_MADVISE, unix.EINVAL, alone.Argument{Number: 2, Value: unix.MADV_POPULATE_WRITE}))
	ends, inboxes := inspected(t)
	for _, f := range inboxes {
		require.Equal(t, inboxSize, resident(t, f))
	}
	large := make([]byte, inboxBegin+1)
	require.NoError(t, ends[0].WriteFrames(transport.Frame{large}))
	wantFrame(t, ends[1], large)
}

// Who leaves tokens may be a C++ peer, which asks for no pages.
func TestInboxForTokensIsComplete(t *testing.T) {
	leakcheck.Check(t)
	_, inboxes := inspected(t, tokens)
	for _, f := range inboxes {
		require.Equal(t, inboxSize, resident(t, f))
	}
}

// A C++ peer that dials can write from the greeting on, for which there are pages by
// then. The one that listens waits for the first word of this end.
func TestInboxForStrangersIsComplete(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newStranger(t, l)
	s.greet(t, words(0, 1), s.files()...)
	requireCompleteInbox(t, s)

	silent, err := net.ListenUnix("unix", socketAddr(""))
	require.NoError(t, err)
	defer silent.Close()
	dialled := patience.Start(func() error {
		c, err := New().Dial(t.Context(), strings.TrimPrefix(silent.Addr().String(), "@"))
		if err == nil {
			defer c.Close()
			err = c.WriteFrames(transport.Frame{[]byte("first word")})
		}
		return err
	})
	socket, err := silent.AcceptUnix()
	require.NoError(t, err)
	s = strangerAt(t, socket)
	s.greet(t, words(0, 1), s.files()...)
	require.NoError(t, patience.Finish(t, dialled))
	requireCompleteInbox(t, s)
}

// requireCompleteInbox takes the greeting of the other end.
func requireCompleteInbox(t *testing.T, s *stranger) {
	t.Helper()
	g, err := receive(s.UnixConn)
	require.NoError(t, err)
	defer g.close()
	require.Equal(t, inboxSize, resident(t, g.files[3]))
}

// However large an inbox a peer shows, no more than one of ours is set aside for it.
func TestForeignInboxIsNotCompleted(t *testing.T) {
	leakcheck.Check(t)
	m, err := create(4*inboxSize, 1)
	require.NoError(t, err)
	defer m.close()
	require.NoError(t, m.complete())
	require.Equal(t, inboxSize, resident(t, m.data.File()))
}
