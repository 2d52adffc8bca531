package shm

import (
	"os"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/deadline"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// connWithFullReactor returns a connection to a raw peer that does not read its triggers, and the
// peer. The ring for triggers has space for two, which were sent.
func connWithFullReactor(t *testing.T) (transport.Conn, *rawPeer) {
	t.Helper()
	l := listen(t)
	s := newRawPeer(t, l)
	s.reactor = unsealed(t, 2*triggerSize)
	c := s.handshake(t, l, 5, 6)
	for range 2 {
		require.NoError(t, c.WriteFrames(transport.Frame{}))
	}
	return c, s
}

// writeOne starts a write of one frame, and returns a channel that receives its result.
func writeOne(c transport.Conn) <-chan error {
	return testwait.Start(func() error { return c.WriteFrames(transport.Frame{[]byte("x")}) })
}

// A write blocks until there is space for its trigger in the peer's ring.
func TestFullReactor(t *testing.T) {
	leakcheck.Check(t)
	c, s := connWithFullReactor(t)
	written := writeOne(c)
	triggers := s.reactor.ring.Consumer()
	require.NoError(t, triggers.Begin())
	got := make([]byte, 2*triggerSize)
	require.NoError(t, triggers.ReadAll(got))
	require.NoError(t, triggers.Commit())
	require.Equal(t, encodeTriggers(5, 5), got)
	require.NoError(t, testwait.Finish(t, written))
}

// A write that waits for space for its trigger blocks its goroutine between attempts, and does not
// spin all the time.
func TestFullReactorSleeps(t *testing.T) {
	leakcheck.Check(t)
	c, s := connWithFullReactor(t)
	written := writeOne(c)
	testwait.WaitIdle(t)
	takeTriggers(t, s, 2)
	require.NoError(t, testwait.Finish(t, written))
	takeTriggers(t, s, 1)
}

// A wake-up that ends a sleep of peerReactor.send is kept for the caller's next wait.
func TestWakeUpAtFullReactorIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := unsealed(t, triggerSize)
		l := newPeerReactor(m, [2]uint32{}, func() bool { return false })
		d, b := new(deadline.Deadline), newWakeup()
		require.NoError(t, l.send(1, d, b))
		require.Empty(t, b)
		begin := time.Now()
		d.Wake = b.wake
		d.Set(begin.Add(time.Hour))
		require.ErrorIs(t, l.send(2, d, b), os.ErrDeadlineExceeded)
		require.Equal(t, time.Hour, time.Since(begin), "the wake-up ends the last sleep")
		require.Len(t, b, 1)
	})
}

func TestFullReactorThenClose(t *testing.T) {
	leakcheck.Check(t)
	c, _ := connWithFullReactor(t)
	written := writeOne(c)
	require.NoError(t, c.Close())
	if err := testwait.Finish(t, written); err != nil {
		require.ErrorIs(t, err, transport.ErrClosed)
	}
}

func TestFullReactorOfDeadPeer(t *testing.T) {
	leakcheck.Check(t)
	c, s := connWithFullReactor(t)
	written := writeOne(c)
	require.NoError(t, s.Close())
	if err := testwait.Finish(t, written); err != nil {
		require.ErrorIs(t, err, syscall.EPIPE)
	}
}

// A write deadline ends the wait for space for a trigger. The bytes are in the ring by then, and
// the next write sends the trigger.
func TestDeadlineAtFullReactor(t *testing.T) {
	leakcheck.Check(t)
	c, s := connWithFullReactor(t)
	out, err := c.(transport.Multiplexer).Stream()
	require.NoError(t, err)
	before := unread(t, s.inbox)
	var n int
	written := testwait.Start(func() (err error) {
		n, err = out.Write([]byte("first"))
		return err
	})
	for unread(t, s.inbox) == before {
		runtime.Gosched()
	}
	require.NoError(t, out.SetWriteDeadline(past))
	require.ErrorIs(t, testwait.Finish(t, written), os.ErrDeadlineExceeded)
	require.Equal(t, len("first"), n)

	takeTriggers(t, s, 2)
	require.NoError(t, out.SetWriteDeadline(time.Time{}))
	_, err = out.Write([]byte("second"))
	require.NoError(t, err)
	takeTriggers(t, s, 1)
}

// A read returns the bytes that it has read, without an error, even if its deadline passes while
// there is no space for the trigger.
func TestReadDeadlineAtFullReactor(t *testing.T) {
	leakcheck.Check(t)
	c, s := connWithFullReactor(t)
	in, err := c.(transport.Multiplexer).Stream()
	require.NoError(t, err)
	s.put(t, "12345678")
	var n int
	p := make([]byte, 8)
	read := testwait.Start(func() (err error) {
		n, err = in.Read(p[:4])
		return err
	})
	for unread(t, s.outbox) == 8 {
		runtime.Gosched()
	}
	require.NoError(t, in.SetReadDeadline(past))
	require.NoError(t, testwait.Finish(t, read))
	require.Equal(t, "1234", string(p[:n]))

	takeTriggers(t, s, 2)
	require.NoError(t, in.SetReadDeadline(time.Time{}))
	_, err = in.Read(p[4:])
	require.NoError(t, err)
	require.Equal(t, "5678", string(p[4:]))
	takeTriggers(t, s, 1)
}

// unread returns the number of bytes in a ring.
func unread(t *testing.T, m memory) int {
	t.Helper()
	n, err := m.ring.Consumer().Readable()
	require.NoError(t, err)
	return n
}

// takeTriggers reads all triggers in the ring of s's reactor, and checks that there are want of
// them.
func takeTriggers(t *testing.T, s *rawPeer, want int) {
	t.Helper()
	triggers := s.reactor.ring.Consumer()
	require.NoError(t, triggers.Begin())
	n, err := triggers.Readable()
	require.NoError(t, err)
	require.Equal(t, want*triggerSize, n)
	require.NoError(t, triggers.ReadAll(make([]byte, n)))
	require.NoError(t, triggers.Commit())
}

// A write blocks while another process writes to the ring of the peer's reactor.
func TestBusyReactor(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newRawPeer(t, l)
	c := s.handshake(t, l, 5, 6)
	other := s.reactor.ring.Producer()
	require.NoError(t, other.Begin())
	written := writeOne(c)
	require.ErrorIs(t, s.reactor.ring.Producer().Begin(), ring.ErrBusy)
	require.NoError(t, other.Cancel())
	require.NoError(t, testwait.Finish(t, written))
}
