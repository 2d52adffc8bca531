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

// limited takes so many bytes and fails then.
type limited struct {
	bytes.Buffer
	left int
}

var errFull = errors.New("full")

func (w *limited) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.left -= n
	w.Buffer.Write(p[:n])
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

// large makes frames that are written part by part.
func large(count int) []transport.Frame {
	frames := make([]transport.Frame, count)
	for i := range frames {
		frames[i] = transport.Frame{make([]byte, copyLimit), {1}}
	}
	return frames
}

func TestBatchLetsGoOfTheMemory(t *testing.T) {
	for _, room := range []int{0, 8, 9, copyLimit + 9, 1 << 20} {
		var b batch
		err := b.write(&limited{left: room}, large(2))
		require.Equal(t, room == 1<<20, err == nil)
		require.Nil(t, b.pending)
		require.NotZero(t, cap(b.parts), "the scratch memory stays")
		for _, p := range b.parts[:cap(b.parts)] {
			require.Nil(t, p)
		}
	}
}

func TestBatchStaysSmall(t *testing.T) {
	var b batch
	require.NoError(t, b.write(&limited{left: 1 << 30}, large(3000)))
	require.LessOrEqual(t, cap(b.parts), keepParts)
	require.LessOrEqual(t, cap(b.scratch), keepParts*8)
}

func TestFailedBatchWroteAPrefix(t *testing.T) {
	var whole, part limited
	whole.left, part.left = 1<<20, 5000
	var b batch
	frames := append(large(2), transport.Frame{[]byte("tail")})
	require.NoError(t, b.write(&whole, frames))
	require.Equal(t, errFull, b.write(&part, frames))
	require.True(t, bytes.Equal(whole.Bytes()[:5000], part.Bytes()))
}

// An interrupted call must not leave its deadline to the next.
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
