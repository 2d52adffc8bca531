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

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

func listen(t testing.TB, opts ...Option) transport.Listener {
	t.Helper()
	l, err := New(opts...).Listen(t.Context(), "")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// file returns a descriptor of the kind that is asked for.
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
	tokens := words(0, 1)
	for name, c := range map[string]struct {
		greet func(t *testing.T, s *stranger)
		want  error
	}{
		"nothing": {func(t *testing.T, s *stranger) {}, io.ErrUnexpectedEOF},
		"too few bytes": {func(t *testing.T, s *stranger) {
			s.greet(t, tokens[:7], s.files()...)
		}, ErrProtocol},
		"no descriptors": {func(t *testing.T, s *stranger) { s.greet(t, tokens) }, ErrProtocol},
		"three descriptors": {func(t *testing.T, s *stranger) {
			s.greet(t, tokens, s.files()[:3]...)
		}, ErrProtocol},
		"five descriptors": {func(t *testing.T, s *stranger) {
			s.greet(t, tokens, append(s.files(), os.Stdin)...)
		}, ErrProtocol},
		"header and data exchanged": {func(t *testing.T, s *stranger) {
			f := s.files()
			s.greet(t, tokens, f[1], f[0], f[2], f[3])
		}, ErrProtocol},
		"data of the other ring": {func(t *testing.T, s *stranger) {
			f := s.files()
			s.greet(t, tokens, f[0], f[3], f[2], f[1])
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
		"a size that is no power of two": {func(t *testing.T, s *stranger) {
			mark(s.inbox, 0, inboxSize-1)
			s.greet(t, tokens, s.files()...)
		}, ErrProtocol},
		"a wrong mask": {func(t *testing.T, s *stranger) {
			mark(s.inbox, 8, math.MaxUint64)
			s.greet(t, tokens, s.files()...)
		}, ErrProtocol},
		"a role that is taken": {func(t *testing.T, s *stranger) {
			mark(s.inbox, 16, 1<<8)
			s.greet(t, tokens, s.files()...)
		}, ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t)
			s := newStranger(t, l)
			c.greet(t, s)
			require.NoError(t, s.CloseWrite())
			wantRefused(t, l, c.want)
			wantWelcome(t, l)
		})
	}
}

// swap greets with one other descriptor.
func swap(at int, other func(t *testing.T) *os.File) func(t *testing.T, s *stranger) {
	return func(t *testing.T, s *stranger) {
		files := s.files()
		files[at] = other(t)
		s.greet(t, words(0, 1), files...)
	}
}

func wantRefused(t *testing.T, l transport.Listener, want error) {
	t.Helper()
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.NextFrame()
	require.ErrorIs(t, err, want)
	var failed *HandshakeError
	require.ErrorAs(t, err, &failed)
}

// wantWelcome checks that others are served.
func wantWelcome(t *testing.T, l transport.Listener) {
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

func TestSilentPeer(t *testing.T) {
	tr := New()
	tr.patience = time.Millisecond
	l, err := tr.Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	newStranger(t, l)
	wantRefused(t, l, os.ErrDeadlineExceeded)
}

func TestListenerClosesUnderAHandshake(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newStranger(t, l)
	require.NoError(t, l.Close())
	_, err := receive(s.UnixConn)
	if !errors.Is(err, unix.ECONNRESET) { // where the handshake had not begun
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
}

// Whoever listens but never answers keeps nobody longer than that one wants.
func TestDialGivesUp(t *testing.T) {
	leakcheck.Check(t)
	mute, err := net.ListenUnix("unix", socketAddr(""))
	require.NoError(t, err)
	defer mute.Close()
	ctx, cancel := context.WithCancel(t.Context())
	dialled := patience.Start(func() error {
		_, err := New().Dial(ctx, mute.Addr().String()[1:])
		return err
	})
	socket, err := mute.AcceptUnix()
	require.NoError(t, err)
	defer socket.Close()
	g, err := receive(socket)
	require.NoError(t, err)
	g.close()
	cancel()
	err = patience.Finish(t, dialled)
	require.ErrorIs(t, err, context.Canceled)
	var failed *HandshakeError
	require.ErrorAs(t, err, &failed)
}

// Whoever is greeted by a stranger's tokens leaves just those.
func TestStrangeTokens(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newStranger(t, l)
	c := s.shake(t, l, 7, math.MaxUint32)
	require.NoError(t, c.WriteFrames(transport.Frame{[]byte("x")}))
	s.put(t, "\x01\x00\x00\x00y")
	wantFrame(t, c, []byte("y"))
	got := make([]byte, 8)
	tokens := s.reactor.ring.Consumer()
	require.NoError(t, tokens.Begin())
	require.NoError(t, tokens.ReadAll(got))
	require.Equal(t, words(7, math.MaxUint32), got)

	// Tokens that mean nothing here are passed over.
	box := newLetterbox(s.post, [2]uint32{}, func() bool { return false })
	read := patience.Start(func() error { _, err := c.NextFrame(); return err })
	for _, token := range []uint32{math.MaxUint32, 1 << 31, 1000} {
		require.NoError(t, box.leave(token, new(deadline), newBell()))
	}
	s.put(t, "\x01\x00\x00\x00")
	require.NoError(t, box.leave(c.(*conn).inToken, new(deadline), newBell()))
	require.NoError(t, patience.Finish(t, read))
}

// A marker that no honest peer writes ends that half of the connection.
func TestBadMarkers(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	t.Run("more bytes than fit", func(t *testing.T) {
		s := newStranger(t, l)
		c := s.shake(t, l, 0, 1)
		mark(s.outbox, headAt, inboxSize+1)
		_, err := c.NextFrame()
		require.ErrorIs(t, err, ErrProtocol)
		require.ErrorContains(t, err, c.RemoteAddr())
	})
	t.Run("fewer than none", func(t *testing.T) {
		s := newStranger(t, l)
		c := s.shake(t, l, 0, 1)
		mark(s.outbox, headAt, math.MaxUint64)
		_, err := c.NextFrame()
		require.ErrorIs(t, err, ErrProtocol)
	})
	t.Run("taken what was not written", func(t *testing.T) {
		s := newStranger(t, l)
		c := s.shake(t, l, 0, 1)
		mark(s.inbox, tailAt, 1)
		require.ErrorIs(t, c.WriteFrames(transport.Frame{[]byte("x")}), ErrProtocol)
	})
	wantWelcome(t, l)
}

// A peer takes its memory back under a writer, and under one that tells it of
// room.
func TestShrunk(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	for name, m := range map[string]func(s *stranger) *segment.Segment{
		"data":             func(s *stranger) *segment.Segment { return s.inbox.data },
		"header":           func(s *stranger) *segment.Segment { return s.inbox.header },
		"reactor":          func(s *stranger) *segment.Segment { return s.reactor.data },
		"reactor's header": func(s *stranger) *segment.Segment { return s.reactor.header },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStranger(t, l)
			c := s.shake(t, l, 0, 1)
			require.NoError(t, c.WriteFrames(transport.Frame{[]byte("x")}))
			require.NoError(t, m(s).File().Truncate(0))
			err := c.WriteFrames(transport.Frame{[]byte("x")})
			require.ErrorIs(t, err, ErrProtocol)
			require.ErrorIs(t, err, segment.ErrFault)
		})
	}
	wantWelcome(t, l)
}

// Room is told of where the memory for it is gone.
func TestShrunkUnderAReader(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newStranger(t, l)
	c := s.shake(t, l, 0, 1)
	require.NoError(t, s.reactor.data.File().Truncate(0))
	s.put(t, "\x01\x00\x00\x00y")
	_, err := c.NextFrame()
	require.NoError(t, err)
	require.ErrorIs(t, c.ReadBody(make([]byte, 1)), segment.ErrFault)
}

// Nobody can take the memory of this end away.
func TestOwnMemoryIsSealed(t *testing.T) {
	l := listen(t)
	s := newStranger(t, l)
	s.greet(t, words(0, 1), s.files()...)
	g, err := receive(s.UnixConn)
	require.NoError(t, err)
	defer g.close()
	for _, f := range g.files {
		require.ErrorIs(t, f.Truncate(0), unix.EPERM)
	}
}

// Bytes on the socket mean nothing in this protocol.
func TestTalkBehindTheGreeting(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newStranger(t, l)
	c := s.shake(t, l, 0, 1)
	s.put(t, "\x01\x00\x00\x00y")
	_, err := s.Write([]byte("psst"))
	require.NoError(t, err)
	wantFrame(t, c, []byte("y"))
	_, err = c.NextFrame()
	require.ErrorIs(t, err, ErrProtocol)
}

// A peer of ours can be rung as often as somebody likes.
func TestFalseAlarms(t *testing.T) {
	dialled, accepted := connect(t, New())
	for range 10_000 {
		dialled.ringDoorbell()
	}
	read := patience.Start(func() error { _, err := accepted.NextFrame(); return err })
	require.NoError(t, dialled.WriteFrames(transport.Frame{}))
	require.NoError(t, patience.Finish(t, read))
}

// One peer breaks the ring of tokens that all peers share. The others go on, and
// so do those that come later.
func TestBrokenReactor(t *testing.T) {
	leakcheck.Check(t)
	tr := New(tokens)
	l, err := tr.Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	dialled, accepted := connect(t, tr)
	s := newStranger(t, l)
	s.shake(t, l, 0, 1)
	mark(s.post, headAt, math.MaxUint64)
	for range 10 {
		want := random(1, inboxSize+1)
		written := patience.Start(func() error { return dialled.WriteFrames(transport.Frame{want}) })
		wantFrame(t, accepted, want)
		require.NoError(t, patience.Finish(t, written))
	}
	require.True(t, accepted.reactor.broken.Load())
	late, _ := connect(t, tr)
	require.NotSame(t, accepted.reactor, late.reactor)
	wantWelcome(t, l)
}
