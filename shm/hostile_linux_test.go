package shm

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/deadline"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

func listen(t testing.TB, opts ...Option) transport.Listener {
	t.Helper()
	l, err := New(opts...).Listen(t.Context(), "")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// file calls open and returns a file with the descriptor that open returns. The file is closed when
// the test ends.
func file(t *testing.T, open func() (int, error)) *os.File {
	t.Helper()
	fd, err := open()
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "bad")
	t.Cleanup(func() { f.Close() })
	return f
}

func sized(t *testing.T, size int64) *os.File {
	f := file(t, func() (int, error) { return unix.MemfdCreate("bad", unix.MFD_CLOEXEC) })
	require.NoError(t, f.Truncate(size))
	return f
}

func TestBadGreetings(t *testing.T) {
	leakcheck.Check(t)
	triggers := encodeTriggers(0, 1)
	for name, c := range map[string]struct {
		sendGreeting func(t *testing.T, s *rawPeer)
		want         error
	}{
		"nothing": {func(t *testing.T, s *rawPeer) {}, io.ErrUnexpectedEOF},
		"too few bytes": {func(t *testing.T, s *rawPeer) {
			s.sendGreeting(t, triggers[:7], s.files()...)
		}, ErrProtocol},
		"no descriptors": {func(t *testing.T, s *rawPeer) { s.sendGreeting(t, triggers) }, ErrProtocol},
		"three descriptors": {func(t *testing.T, s *rawPeer) {
			s.sendGreeting(t, triggers, s.files()[:3]...)
		}, ErrProtocol},
		"five descriptors": {func(t *testing.T, s *rawPeer) {
			s.sendGreeting(t, triggers, append(s.files(), os.Stdin)...)
		}, ErrProtocol},
		"header and data exchanged": {func(t *testing.T, s *rawPeer) {
			f := s.files()
			s.sendGreeting(t, triggers, f[1], f[0], f[2], f[3])
		}, ErrProtocol},
		"data of the other ring": {func(t *testing.T, s *rawPeer) {
			f := s.files()
			s.sendGreeting(t, triggers, f[0], f[3], f[2], f[1])
		}, ErrProtocol},
		"a header that is too long": {swap(2, func(t *testing.T) *os.File { return sized(t, 41) }), ErrProtocol},
		"a header that is too short": {swap(2, func(t *testing.T) *os.File {
			return sized(t, 39)
		}), ErrProtocol},
		"an empty file":    {swap(3, func(t *testing.T) *os.File { return sized(t, 0) }), ErrProtocol},
		"terabytes":        {swap(3, func(t *testing.T) *os.File { return sized(t, 1<<40) }), ErrProtocol},
		"zeros as headers": {swap(0, func(t *testing.T) *os.File { return sized(t, 40) }), ErrProtocol},
		"a device": {swap(1, func(t *testing.T) *os.File {
			return file(t, func() (int, error) { return unix.Open("/dev/null", unix.O_RDWR, 0) })
		}), ErrProtocol},
		"an eventfd": {swap(1, func(t *testing.T) *os.File {
			return file(t, func() (int, error) { return unix.Eventfd(0, unix.EFD_CLOEXEC) })
		}), ErrProtocol},
		"a size that is no power of two": {func(t *testing.T, s *rawPeer) {
			setField(s.inbox, 0, inboxSize-1)
			s.sendGreeting(t, triggers, s.files()...)
		}, ErrProtocol},
		"a wrong mask": {func(t *testing.T, s *rawPeer) {
			setField(s.inbox, 8, math.MaxUint64)
			s.sendGreeting(t, triggers, s.files()...)
		}, ErrProtocol},
		"a role that is taken": {func(t *testing.T, s *rawPeer) {
			setField(s.inbox, 16, 1<<8)
			s.sendGreeting(t, triggers, s.files()...)
		}, ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t)
			s := newRawPeer(t, l)
			c.sendGreeting(t, s)
			require.NoError(t, s.CloseWrite())
			wantHandshakeError(t, l, c.want)
			wantAccepted(t, l)
		})
	}
}

// swap returns a function that sends a greeting of the raw peer s in which the descriptor with the
// index at is replaced by that of the file from other.
func swap(at int, other func(t *testing.T) *os.File) func(t *testing.T, s *rawPeer) {
	return func(t *testing.T, s *rawPeer) {
		files := s.files()
		files[at] = other(t)
		s.sendGreeting(t, encodeTriggers(0, 1), files...)
	}
}

func wantHandshakeError(t *testing.T, l transport.Listener, want error) {
	t.Helper()
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.NextFrame()
	require.ErrorIs(t, err, want)
	var failed *HandshakeError
	require.ErrorAs(t, err, &failed)
}

// wantAccepted checks that l still accepts a client, whose frame arrives.
func wantAccepted(t *testing.T, l transport.Listener) {
	t.Helper()
	dialled, err := New().Dial(t.Context(), l.Addr())
	require.NoError(t, err)
	defer dialled.Close()
	accepted, err := l.Accept(t.Context())
	require.NoError(t, err)
	defer accepted.Close()
	require.NoError(t, dialled.WriteFrames(transport.Frame{[]byte("hello")}))
	wantFrame(t, accepted, []byte("hello"))
}

func TestHandshakeTimeout(t *testing.T) {
	tr := New()
	tr.handshakeTimeout = time.Millisecond
	l, err := tr.Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	newRawPeer(t, l)
	wantHandshakeError(t, l, os.ErrDeadlineExceeded)
}

func TestListenerClosesDuringHandshake(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newRawPeer(t, l)
	require.NoError(t, l.Close())
	_, err := receiveGreeting(s.UnixConn)
	if !errors.Is(err, unix.ECONNRESET) { // the error if the handshake had not begun
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
}

// Dial returns when its context ends, even if the listener never answers.
func TestDialGivesUp(t *testing.T) {
	leakcheck.Check(t)
	listener, err := net.ListenUnix("unix", socketAddr(""))
	require.NoError(t, err)
	defer listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	dialled := testwait.Start(func() error {
		_, err := New().Dial(ctx, listener.Addr().String()[1:])
		return err
	})
	socket, err := listener.AcceptUnix()
	require.NoError(t, err)
	defer socket.Close()
	g, err := receiveGreeting(socket)
	require.NoError(t, err)
	g.close()
	cancel()
	err = testwait.Finish(t, dialled)
	require.ErrorIs(t, err, context.Canceled)
	var failed *HandshakeError
	require.ErrorAs(t, err, &failed)
}

// This end sends the two triggers that the peer's greeting contains. It ignores triggers from the
// peer that it has not registered.
func TestTriggersOfPeer(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newRawPeer(t, l)
	c := s.handshake(t, l, 7, math.MaxUint32)
	require.NoError(t, c.WriteFrames(transport.Frame{[]byte("x")}))
	s.put(t, "\x01\x00\x00\x00y")
	wantFrame(t, c, []byte("y"))
	got := make([]byte, 8)
	triggers := s.reactor.ring.Consumer()
	require.NoError(t, triggers.Begin())
	require.NoError(t, triggers.ReadAll(got))
	require.Equal(t, encodeTriggers(7, math.MaxUint32), got)

	// Unknown triggers are ignored.
	target := newPeerReactor(s.otherReactor, [2]uint32{}, func() bool { return false })
	read := testwait.Start(func() error { _, err := c.NextFrame(); return err })
	for _, trigger := range []uint32{math.MaxUint32, 1 << 31, 1000} {
		require.NoError(t, target.send(trigger, new(deadline.Deadline), newWakeup()))
	}
	s.put(t, "\x01\x00\x00\x00")
	require.NoError(t, target.send(c.(*conn).inTrigger, new(deadline.Deadline), newWakeup()))
	require.NoError(t, testwait.Finish(t, read))
}

// An impossible head or tail in a ring, written by the peer, ends that direction of the connection
// with an error.
func TestBadMarkers(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	t.Run("more bytes than fit", func(t *testing.T) {
		s := newRawPeer(t, l)
		c := s.handshake(t, l, 0, 1)
		setField(s.outbox, headAt, inboxSize+1)
		_, err := c.NextFrame()
		require.ErrorIs(t, err, ErrProtocol)
		require.ErrorContains(t, err, c.RemoteAddr())
	})
	t.Run("fewer than none", func(t *testing.T) {
		s := newRawPeer(t, l)
		c := s.handshake(t, l, 0, 1)
		setField(s.outbox, headAt, math.MaxUint64)
		_, err := c.NextFrame()
		require.ErrorIs(t, err, ErrProtocol)
	})
	t.Run("taken what was not written", func(t *testing.T) {
		s := newRawPeer(t, l)
		c := s.handshake(t, l, 0, 1)
		setField(s.inbox, tailAt, 1)
		require.ErrorIs(t, c.WriteFrames(transport.Frame{[]byte("x")}), ErrProtocol)
	})
	wantAccepted(t, l)
}

// If a peer truncates its inbox or the ring of its reactor, the next write fails with an error that
// matches ErrProtocol and segment.ErrFault. The listener goes on.
func TestShrunk(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	for name, m := range map[string]func(s *rawPeer) *segment.Segment{
		"data":             func(s *rawPeer) *segment.Segment { return s.inbox.data },
		"header":           func(s *rawPeer) *segment.Segment { return s.inbox.header },
		"reactor":          func(s *rawPeer) *segment.Segment { return s.reactor.data },
		"reactor's header": func(s *rawPeer) *segment.Segment { return s.reactor.header },
	} {
		t.Run(name, func(t *testing.T) {
			s := newRawPeer(t, l)
			c := s.handshake(t, l, 0, 1)
			require.NoError(t, c.WriteFrames(transport.Frame{[]byte("x")}))
			require.NoError(t, m(s).File().Truncate(0))
			err := c.WriteFrames(transport.Frame{[]byte("x")})
			require.ErrorIs(t, err, ErrProtocol)
			require.ErrorIs(t, err, segment.ErrFault)
		})
	}
	wantAccepted(t, l)
}

// A read fails if the peer has truncated the ring of its reactor, to which this end sends a trigger
// for the bytes that it has read.
func TestShrunkDuringRead(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newRawPeer(t, l)
	c := s.handshake(t, l, 0, 1)
	require.NoError(t, s.reactor.data.File().Truncate(0))
	s.put(t, "\x01\x00\x00\x00y")
	_, err := c.NextFrame()
	require.NoError(t, err)
	require.ErrorIs(t, c.ReadBody(make([]byte, 1)), segment.ErrFault)
}

// A peer cannot truncate the memory of this end.
func TestOwnMemoryIsSealed(t *testing.T) {
	l := listen(t)
	s := newRawPeer(t, l)
	s.sendGreeting(t, encodeTriggers(0, 1), s.files()...)
	g, err := receiveGreeting(s.UnixConn)
	require.NoError(t, err)
	defer g.close()
	for _, f := range g.files {
		require.ErrorIs(t, f.Truncate(0), unix.EPERM)
	}
}

// If a peer without doorbells sends bytes through the socket after its greeting, reads fail with
// ErrProtocol once the ring is empty.
func TestBytesAfterGreeting(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newRawPeer(t, l)
	c := s.handshake(t, l, 0, 1)
	s.put(t, "\x01\x00\x00\x00y")
	_, err := s.Write([]byte("psst"))
	require.NoError(t, err)
	wantFrame(t, c, []byte("y"))
	_, err = c.NextFrame()
	require.ErrorIs(t, err, ErrProtocol)
}

// Frames still arrive after many doorbells that were not requested.
func TestUnneededDoorbells(t *testing.T) {
	dialled, accepted := connect(t, New())
	for range 10_000 {
		dialled.notify()
	}
	read := testwait.Start(func() error { _, err := accepted.NextFrame(); return err })
	require.NoError(t, dialled.WriteFrames(transport.Frame{}))
	require.NoError(t, testwait.Finish(t, read))
}

// After one peer has corrupted the ring of triggers, which all peers share, connections of other
// peers go on, and new ones can be opened.
func TestBrokenReactor(t *testing.T) {
	leakcheck.Check(t)
	tr := New(triggers)
	l, err := tr.Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	dialled, accepted := connect(t, tr)
	s := newRawPeer(t, l)
	s.handshake(t, l, 0, 1)
	setField(s.otherReactor, headAt, math.MaxUint64)
	for range 10 {
		want := random(1, inboxSize+1)
		written := testwait.Start(func() error { return dialled.WriteFrames(transport.Frame{want}) })
		wantFrame(t, accepted, want)
		require.NoError(t, testwait.Finish(t, written))
	}
	require.True(t, accepted.reactor.broken.Load())
	late, _ := connect(t, tr)
	require.NotSame(t, accepted.reactor, late.reactor)
	wantAccepted(t, l)
}
