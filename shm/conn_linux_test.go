package shm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/deadline"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// To a C++ peer the end of the socket ends both directions, so CloseWrite closes the socket only
// after the peer has read everything.
func TestCloseWriteWaitsForPeerWithoutDoorbells(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newRawPeer(t, l)
	c := s.handshake(t, l, 0, 1)
	require.NoError(t, c.WriteFrames(transport.Frame{[]byte("last bytes")}))
	require.NoError(t, c.CloseWrite())
	require.NoError(t, c.CloseWrite())
	require.NoError(t, s.SetReadDeadline(past))
	_, err := s.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "too early")

	reader := s.inbox.ring.Consumer()
	require.NoError(t, reader.Begin())
	require.NoError(t, reader.ReadAll(make([]byte, headerSize+len("last bytes"))))
	require.NoError(t, reader.Commit())
	target := newPeerReactor(s.otherReactor, [2]uint32{}, func() bool { return false })
	require.NoError(t, target.send(c.(*conn).outTrigger, new(deadline.Deadline), newWakeup()))
	s.put(t, "\x06\x00\x00\x00answer")
	wantSocketEOF(t, s)
	wantFrame(t, c, []byte("answer"))
	require.NoError(t, s.Close())
	_, err = c.NextFrame()
	require.Equal(t, io.EOF, err)
}

// CloseWrite after a write that failed within a frame closes the socket once the peer without
// doorbells has read the frames before: a C++ peer reads some frames only when they are complete.
func TestCloseWriteAfterIncompleteFrame(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newRawPeer(t, l)
	c := s.handshake(t, l, 0, 1)
	written := testwait.StartBlocked(t, "WriteFrames", func() error {
		return c.WriteFrames(transport.Frame{[]byte("complete")}, transport.Frame{make([]byte, inboxSize)})
	})
	require.NoError(t, c.CloseWrite())
	require.ErrorIs(t, testwait.Finish(t, written), transport.ErrClosed)
	require.NoError(t, s.SetReadDeadline(past))
	_, err := s.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "too early")

	reader := s.inbox.ring.Consumer()
	require.NoError(t, reader.Begin())
	require.NoError(t, reader.ReadAll(make([]byte, headerSize+len("complete"))))
	require.NoError(t, reader.Commit())
	target := newPeerReactor(s.otherReactor, [2]uint32{}, func() bool { return false })
	require.NoError(t, target.send(c.(*conn).outTrigger, new(deadline.Deadline), newWakeup()))
	wantSocketEOF(t, s)
}

func wantSocketEOF(t *testing.T, s *rawPeer) {
	t.Helper()
	require.NoError(t, s.SetReadDeadline(time.Time{}))
	read := testwait.Start(func() error {
		_, err := s.Read(make([]byte, 1))
		return err
	})
	require.Equal(t, io.EOF, testwait.Finish(t, read))
}

// A write after CloseWrite fails with ErrClosed at once, even if the peer has not read the bytes
// written before.
func TestWriteAfterCloseWriteDoesNotBlock(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	for name, writer := range map[string]func(*testing.T, *conn) (write, closeWrite func() error){
		"frames": func(_ *testing.T, c *conn) (write, closeWrite func() error) {
			return func() error { return c.WriteFrames(transport.Frame{[]byte("more")}) }, c.CloseWrite
		},
		"bytes": func(t *testing.T, c *conn) (write, closeWrite func() error) {
			s, err := c.Stream()
			require.NoError(t, err)
			return func() error { _, err := s.Write([]byte("more")); return err }, s.CloseWrite
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newRawPeer(t, l).handshake(t, l, 0, 1).(*conn)
			require.NoError(t, c.WriteFrames(transport.Frame{[]byte("last bytes")}))
			write, closeWrite := writer(t, c)
			require.NoError(t, closeWrite())
			written := testwait.Start(func() error {
				for range 1000 { // until the goroutine of CloseWrite has started
					if err := write(); !errors.Is(err, transport.ErrClosed) {
						return fmt.Errorf("other than closed: %w", err)
					}
					runtime.Gosched()
				}
				return nil
			})
			require.NoError(t, testwait.Finish(t, written))
		})
	}
}

// Close after CloseWrite returns even if the peer reads nothing.
func TestCloseAfterCloseWrite(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newRawPeer(t, l)
	c := s.handshake(t, l, 0, 1)
	require.NoError(t, c.WriteFrames(transport.Frame{[]byte("last bytes")}))
	require.NoError(t, c.CloseWrite())
	require.NoError(t, c.Close())
	require.NoError(t, c.CloseWrite())
	wantSocketEOF(t, s)
}

// A frame whose length does not fit into four bytes is refused before any of it is written.
func TestFrameTooLarge(t *testing.T) {
	dialled, accepted := connect(t, New())
	part := make([]byte, 1<<20)
	frame := make(transport.Frame, 4<<10)
	for i := range frame {
		frame[i] = part
	}
	var size *transport.FrameSizeError
	require.ErrorAs(t, dialled.WriteFrames(transport.Frame{}, frame), &size)
	require.Equal(t, transport.FrameSizeError{Size: 4 << 30, Largest: 4<<30 - 1}, *size)
	require.NoError(t, transport.CheckFrame(dialled, size.Largest))
	require.Error(t, transport.CheckFrame(dialled, size.Size))
	require.Error(t, transport.CheckFrame(New(), size.Size))
	require.NoError(t, dialled.WriteFrames(transport.Frame{[]byte("next")}))
	wantFrame(t, accepted, []byte("next"))
}

// Calls on a closed connection fail because it is closed, not because a body is unread.
func TestCloseWithinBody(t *testing.T) {
	dialled, accepted := connect(t, New())
	require.NoError(t, dialled.WriteFrames(transport.Frame{[]byte("body")}))
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
	_, err = accepted.NextFrame()
	require.ErrorIs(t, err, transport.ErrClosed)
}

// Close returns even if the peer writes to the socket faster than this end reads.
func TestCloseDuringFlood(t *testing.T) {
	leakcheck.Check(t)
	for name, accept := range map[string]func(*testing.T) (*net.UnixConn, transport.Conn){
		"of doorbells": func(t *testing.T) (*net.UnixConn, transport.Conn) {
			dialled, accepted := connect(t, New())
			return dialled.socket, accepted
		},
		"of bytes that mean nothing": func(t *testing.T) (*net.UnixConn, transport.Conn) {
			l := listen(t)
			s := newRawPeer(t, l)
			return s.UnixConn, s.handshake(t, l, 0, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			socket, c := accept(t)
			rising := make(chan struct{})
			flood := testwait.Start(func() error {
				p := bytes.Repeat([]byte{eventChanged}, 64<<10)
				for n := 0; ; n++ {
					if _, err := socket.Write(p); err != nil {
						return err
					}
					if n == 8 { // more than a socket holds
						close(rising)
					}
				}
			})
			testwait.Finish(t, rising)
			require.NoError(t, testwait.Finish(t, testwait.Start(c.Close)))
			require.Error(t, testwait.Finish(t, flood))
		})
	}
}

// FrameLimits gives no MaxWhole for a peer of this package, which reads frames of any size. For a
// peer without doorbells, which may be C++ and read some frames in one piece, it is the size of the
// peer's ring less the four bytes of the frame's length.
func TestLargestFrameInOnePiece(t *testing.T) {
	for _, c := range connectEnds(t, New()) {
		require.Zero(t, c.FrameLimits().MaxWhole)
	}
	for _, c := range connectEnds(t, New(triggers)) {
		require.Equal(t, inboxSize-4, c.FrameLimits().MaxWhole)
	}
	l := listen(t)
	s := newRawPeer(t, l)
	s.inbox = unsealed(t, 4096)
	require.Equal(t, 4096-4, s.handshake(t, l, 0, 1).(transport.FrameLimiter).FrameLimits().MaxWhole)
}

// connectEnds returns both ends of a new connection within tr, which are closed when the test ends.
func connectEnds(t *testing.T, tr *Transport) [2]*conn {
	d, a := connect(t, tr)
	return [2]*conn{d, a}
}

// A write of memory that cannot be read panics, even though faults in the peer's memory are errors.
func TestFaultInCallersMemory(t *testing.T) {
	l := listen(t)
	c := newRawPeer(t, l).handshake(t, l, 0, 1)
	memory, err := unix.Mmap(-1, 0, 8192, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer unix.Munmap(memory)
	defer func() {
		fault, ok := recover().(interface {
			runtime.Error
			Addr() uintptr
		})
		require.True(t, ok)
		start := uintptr(unsafe.Pointer(&memory[0]))
		require.GreaterOrEqual(t, fault.Addr(), start)
		require.Less(t, fault.Addr(), start+uintptr(len(memory)))
	}()
	err = c.WriteFrames(transport.Frame{memory})
	require.Fail(t, "no panic", "%v", err)
}

// gatherStream is a stream that writes several buffers at once.
type gatherStream interface {
	transport.Stream
	transport.Gatherer
}

// streams returns the two ends of a new connection within tr as streams, which are closed when the
// test ends.
func streams(t *testing.T, tr *Transport) (one, other gatherStream) {
	t.Helper()
	dialled, accepted := connect(t, tr)
	a, err := dialled.Stream()
	require.NoError(t, err)
	b, err := accepted.Stream()
	require.NoError(t, err)
	return a.(gatherStream), b.(gatherStream)
}

// splitAtRandom splits p into pieces of many sizes, the first one empty, and returns them. They
// refer to p.
func splitAtRandom(p []byte) (pieces net.Buffers) {
	for size := 0; len(p) > 0; size = (size*5 + 1) % 300_007 {
		n := min(size, len(p))
		pieces = append(pieces, p[:n])
		p = p[n:]
	}
	return pieces
}

func TestWriteBuffers(t *testing.T) {
	withBothKinds(t, func(t *testing.T, tr *Transport) {
		one, other := streams(t, tr)
		want := random(1, 3*inboxSize+5)
		pieces := splitAtRandom(want)
		given := slices.Clone(pieces)
		all := pieces
		written := testwait.Start(func() error {
			n, err := one.WriteBuffers(&pieces)
			if err == nil && n != int64(len(want)) {
				err = io.ErrShortWrite
			}
			return err
		})
		got := make([]byte, len(want))
		_, err := io.ReadFull(other, got)
		require.NoError(t, err)
		require.NoError(t, testwait.Finish(t, written))
		require.True(t, bytes.Equal(want, got))
		require.Empty(t, pieces)
		require.Equal(t, make(net.Buffers, len(all)), all, "nothing is held on to")
		require.True(t, bytes.Equal(want, slices.Concat(given...)), "the bytes are as they were")
	})
}

// If a deadline interrupts WriteBuffers, the pieces that it leaves are exactly the bytes that the
// peer has not received.
func TestWriteBuffersAfterDeadline(t *testing.T) {
	withBothKinds(t, func(t *testing.T, tr *Transport) {
		one, other := streams(t, tr)
		want := random(2, 2*inboxSize)
		pieces := splitAtRandom(want)
		var n int64
		written := testwait.Start(func() (err error) {
			n, err = one.WriteBuffers(&pieces)
			return err
		})
		first := make([]byte, 10)
		_, err := io.ReadFull(other, first)
		require.NoError(t, err)
		require.NoError(t, one.SetWriteDeadline(past))
		require.ErrorIs(t, testwait.Finish(t, written), os.ErrDeadlineExceeded)
		require.True(t, bytes.Equal(want[n:], slices.Concat(pieces...)))
		k, err := one.WriteBuffers(&pieces)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Zero(t, k)

		require.NoError(t, one.SetWriteDeadline(time.Time{}))
		written = testwait.Start(func() error {
			_, err := one.WriteBuffers(&pieces)
			return err
		})
		rest := make([]byte, len(want)-len(first))
		_, err = io.ReadFull(other, rest)
		require.NoError(t, err)
		require.NoError(t, testwait.Finish(t, written))
		require.True(t, bytes.Equal(want, append(first, rest...)))
	})
}
