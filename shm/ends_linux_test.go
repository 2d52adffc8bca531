package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// To a C++ peer the end of the socket is the end of everything, so it comes when
// the peer has taken what was written.
func TestCloseWriteWaitsForAPeerWithoutDoorbells(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newStranger(t, l)
	c := s.shake(t, l, 0, 1)
	require.NoError(t, c.WriteFrames(transport.Frame{[]byte("last words")}))
	require.NoError(t, c.CloseWrite())
	require.NoError(t, c.CloseWrite())
	require.NoError(t, s.SetReadDeadline(past))
	_, err := s.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "too early")

	words := s.inbox.ring.Consumer()
	require.NoError(t, words.Begin())
	require.NoError(t, words.ReadAll(make([]byte, headerSize+len("last words"))))
	require.NoError(t, words.Commit())
	box := newLetterbox(s.post, [2]uint32{}, func() bool { return false })
	require.NoError(t, box.leave(c.(*conn).outToken, new(deadline), newBell()))
	s.put(t, "\x06\x00\x00\x00answer")
	wantEnd(t, s)
	wantFrame(t, c, []byte("answer"))
	require.NoError(t, s.Close())
	_, err = c.NextFrame()
	require.Equal(t, io.EOF, err)
}

func wantEnd(t *testing.T, s *stranger) {
	t.Helper()
	require.NoError(t, s.SetReadDeadline(time.Time{}))
	read := patience.Start(func() error {
		_, err := s.Read(make([]byte, 1))
		return err
	})
	require.Equal(t, io.EOF, patience.Finish(t, read))
}

// Who writes after CloseWrite hears so at once, whatever the peer has taken.
func TestWriteAfterCloseWriteDoesNotWait(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	for name, writer := range map[string]func(*testing.T, *conn) func() error{
		"frames": func(_ *testing.T, c *conn) func() error {
			return func() error { return c.WriteFrames(transport.Frame{[]byte("more")}) }
		},
		"bytes": func(t *testing.T, c *conn) func() error {
			s, err := c.Stream()
			require.NoError(t, err)
			return func() error { _, err := s.Write([]byte("more")); return err }
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newStranger(t, l).shake(t, l, 0, 1).(*conn)
			require.NoError(t, c.WriteFrames(transport.Frame{[]byte("last words")}))
			write := writer(t, c)
			require.NoError(t, c.CloseWrite())
			written := patience.Start(func() error {
				for range 1000 { // until the one who waits for the peer is at work too
					if err := write(); !errors.Is(err, transport.ErrClosed) {
						return fmt.Errorf("other than closed: %w", err)
					}
					runtime.Gosched()
				}
				return nil
			})
			require.NoError(t, patience.Finish(t, written))
		})
	}
}

// A close does not wait for a peer that takes nothing.
func TestCloseAfterCloseWrite(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newStranger(t, l)
	c := s.shake(t, l, 0, 1)
	require.NoError(t, c.WriteFrames(transport.Frame{[]byte("last words")}))
	require.NoError(t, c.CloseWrite())
	require.NoError(t, c.Close())
	require.NoError(t, c.CloseWrite())
	wantEnd(t, s)
}

// A frame whose length has no room in four bytes is refused before a byte of it
// leaves.
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

// What is wrong with a call on a closed connection is that it is closed.
func TestClosedWithinABody(t *testing.T) {
	dialled, accepted := connect(t, New())
	require.NoError(t, dialled.WriteFrames(transport.Frame{[]byte("body")}))
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
	_, err = accepted.NextFrame()
	require.ErrorIs(t, err, transport.ErrClosed)
}
