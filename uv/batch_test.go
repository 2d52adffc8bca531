package uv

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// limitedWriter accepts a number of bytes and then fails.
type limitedWriter struct {
	bytes.Buffer
	left int
}

var errFull = errors.New("full")

func (w *limitedWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.left -= n
	w.Buffer.Write(p[:n])
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

// largeFrames returns frames that are not copied to one buffer.
func largeFrames(count int) []transport.Frame {
	frames := make([]transport.Frame, count)
	for i := range frames {
		frames[i] = transport.Frame{make([]byte, copyLimit), {1}}
	}
	return frames
}

func TestBatchReleasesMemory(t *testing.T) {
	for _, space := range []int{0, 8, 9, copyLimit + 9, 1 << 20} {
		var b batch
		err := b.write(&limitedWriter{left: space}, largeFrames(2))
		require.Equal(t, space == 1<<20, err == nil)
		require.Nil(t, b.pending)
		require.NotZero(t, cap(b.parts), "the scratch memory stays")
		for _, p := range b.parts[:cap(b.parts)] {
			require.Nil(t, p)
		}
	}
}

func TestBatchStaysSmall(t *testing.T) {
	var b batch
	require.NoError(t, b.write(&limitedWriter{left: 1 << 30}, largeFrames(3000)))
	require.LessOrEqual(t, cap(b.parts), keepParts)
	require.LessOrEqual(t, cap(b.buf), keepParts*8)
}

func TestFailedBatchWroteAPrefix(t *testing.T) {
	var whole, part limitedWriter
	whole.left, part.left = 1<<20, 5000
	var b batch
	frames := append(largeFrames(2), transport.Frame{[]byte("tail")})
	require.NoError(t, b.write(&whole, frames))
	require.Equal(t, errFull, b.write(&part, frames))
	require.True(t, bytes.Equal(whole.Bytes()[:5000], part.Bytes()))
}

// A cancelled call of Accept leaves no deadline for the next one.
func TestAcceptClearsTheDeadline(t *testing.T) {
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	l := newListener(tcp, 0)
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.accept(ctx)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	c, err := net.Dial("tcp", l.Addr())
	require.NoError(t, err)
	defer c.Close()
	accepted, err := l.Accept(t.Context())
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
}
