package shm

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
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

// Who leaves tokens may be a C++ peer, which asks for no pages.
func TestInboxForTokensIsComplete(t *testing.T) {
	leakcheck.Check(t)
	_, inboxes := inspected(t, tokens)
	for _, f := range inboxes {
		require.Equal(t, inboxSize, resident(t, f))
	}
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
