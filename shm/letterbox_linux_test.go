package shm

import (
	"os"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// crowded returns a connection whose peer looks at no tokens and has room for
// two, which are there.
func crowded(t *testing.T) (transport.Conn, *stranger) {
	t.Helper()
	l := listen(t)
	s := newStranger(t, l)
	s.reactor = unsealed(t, 2*tokenSize)
	c := s.shake(t, l, 5, 6)
	for range 2 {
		require.NoError(t, c.WriteFrames(transport.Frame{}))
	}
	return c, s
}

// writeOne starts a write that finds no room for its token.
func writeOne(c transport.Conn) <-chan error {
	return patience.Start(func() error { return c.WriteFrames(transport.Frame{[]byte("x")}) })
}

// A writer that cannot leave word waits until it can.
func TestFullReactor(t *testing.T) {
	leakcheck.Check(t)
	c, s := crowded(t)
	written := writeOne(c)
	tokens := s.reactor.ring.Consumer()
	require.NoError(t, tokens.Begin())
	got := make([]byte, 2*tokenSize)
	require.NoError(t, tokens.ReadAll(got))
	require.NoError(t, tokens.Commit())
	require.Equal(t, words(5, 5), got)
	require.NoError(t, patience.Finish(t, written))
}

// While it waits it sleeps.
func TestFullReactorSleeps(t *testing.T) {
	leakcheck.Check(t)
	c, s := crowded(t)
	written := writeOne(c)
	patience.Asleep(t)
	takeTokens(t, s, 2)
	require.NoError(t, patience.Finish(t, written))
	takeTokens(t, s, 1)
}

// What rings the bell in the midst of that rings it for whoever waits next as well.
func TestBellOfAFullReactorIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := unsealed(t, tokenSize)
		l := newLetterbox(m, [2]uint32{}, func() bool { return false })
		d, b := new(deadline), newBell()
		require.NoError(t, l.leave(1, d, b))
		require.Empty(t, b)
		begin := time.Now()
		d.set(begin.Add(time.Hour), b)
		require.ErrorIs(t, l.leave(2, d, b), os.ErrDeadlineExceeded)
		require.Equal(t, time.Hour, time.Since(begin), "the bell ends the last sleep")
		require.Len(t, b, 1)
	})
}

func TestFullReactorThenClose(t *testing.T) {
	leakcheck.Check(t)
	c, _ := crowded(t)
	written := writeOne(c)
	require.NoError(t, c.Close())
	if err := patience.Finish(t, written); err != nil {
		require.ErrorIs(t, err, transport.ErrClosed)
	}
}

func TestFullReactorOfADeadPeer(t *testing.T) {
	leakcheck.Check(t)
	c, s := crowded(t)
	written := writeOne(c)
	require.NoError(t, s.Close())
	if err := patience.Finish(t, written); err != nil {
		require.ErrorIs(t, err, syscall.EPIPE)
	}
}

// A deadline ends also the wait for room for a token. What was written has left, and
// the peer hears of it with the next write.
func TestDeadlineAtAFullReactor(t *testing.T) {
	leakcheck.Check(t)
	c, s := crowded(t)
	out, err := c.(transport.Streamer).Stream()
	require.NoError(t, err)
	before := unread(t, s.inbox)
	var n int
	written := patience.Start(func() (err error) {
		n, err = out.Write([]byte("first"))
		return err
	})
	for unread(t, s.inbox) == before {
		runtime.Gosched()
	}
	require.NoError(t, out.SetWriteDeadline(past))
	require.ErrorIs(t, patience.Finish(t, written), os.ErrDeadlineExceeded)
	require.Equal(t, len("first"), n)

	takeTokens(t, s, 2)
	require.NoError(t, out.SetWriteDeadline(time.Time{}))
	_, err = out.Write([]byte("second"))
	require.NoError(t, err)
	takeTokens(t, s, 1)
}

// A reader that cannot say that there is room has what it has read.
func TestReadDeadlineAtAFullReactor(t *testing.T) {
	leakcheck.Check(t)
	c, s := crowded(t)
	in, err := c.(transport.Streamer).Stream()
	require.NoError(t, err)
	s.put(t, "12345678")
	var n int
	p := make([]byte, 8)
	read := patience.Start(func() (err error) {
		n, err = in.Read(p[:4])
		return err
	})
	for unread(t, s.outbox) == 8 {
		runtime.Gosched()
	}
	require.NoError(t, in.SetReadDeadline(past))
	require.NoError(t, patience.Finish(t, read))
	require.Equal(t, "1234", string(p[:n]))

	takeTokens(t, s, 2)
	require.NoError(t, in.SetReadDeadline(time.Time{}))
	_, err = in.Read(p[4:])
	require.NoError(t, err)
	require.Equal(t, "5678", string(p[4:]))
	takeTokens(t, s, 1)
}

// unread is how many bytes are in a ring.
func unread(t *testing.T, m memory) int {
	t.Helper()
	n, err := m.ring.Consumer().Readable()
	require.NoError(t, err)
	return n
}

// takeTokens takes out the tokens that are there, of which there must be so many.
func takeTokens(t *testing.T, s *stranger, want int) {
	t.Helper()
	tokens := s.reactor.ring.Consumer()
	require.NoError(t, tokens.Begin())
	n, err := tokens.Readable()
	require.NoError(t, err)
	require.Equal(t, want*tokenSize, n)
	require.NoError(t, tokens.ReadAll(make([]byte, n)))
	require.NoError(t, tokens.Commit())
}

// Another producer is at work, and for long.
func TestBusyReactor(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newStranger(t, l)
	c := s.shake(t, l, 5, 6)
	other := s.reactor.ring.Producer()
	require.NoError(t, other.Begin())
	written := writeOne(c)
	require.ErrorIs(t, s.reactor.ring.Producer().Begin(), ring.ErrBusy)
	require.NoError(t, other.Cancel())
	require.NoError(t, patience.Finish(t, written))
}
