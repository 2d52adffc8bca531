package frame

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
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

// largeFrames returns count frames of two parts, each frame so large that a batch writes its parts
// without copying them.
func largeFrames(count int) [][][]byte {
	frames := make([][][]byte, count)
	for i := range frames {
		frames[i] = [][]byte{make([]byte, copyLimit), {1}}
	}
	return frames
}

func TestBatchReleasesMemory(t *testing.T) {
	for _, space := range []int{0, 8, 9, copyLimit + 9, 1 << 20} {
		var b Batch[[][]byte]
		err := b.Write(&limitedWriter{left: space}, largeFrames(2))
		require.Equal(t, space == 1<<20, err == nil)
		require.Nil(t, b.pending)
		require.NotZero(t, cap(b.parts), "the scratch memory stays")
		for _, p := range b.parts[:cap(b.parts)] {
			require.Nil(t, p)
		}
	}
}

func TestBatchStaysSmall(t *testing.T) {
	var b Batch[[][]byte]
	require.NoError(t, b.Write(&limitedWriter{left: 1 << 30}, largeFrames(3000)))
	require.LessOrEqual(t, cap(b.parts), keepParts)
	require.LessOrEqual(t, cap(b.buf), keepParts*8)
}

func TestFailedBatchWroteAPrefix(t *testing.T) {
	var whole, part limitedWriter
	whole.left, part.left = 1<<20, 5000
	var b Batch[[][]byte]
	frames := append(largeFrames(2), [][]byte{[]byte("tail")})
	require.NoError(t, b.Write(&whole, frames))
	require.Equal(t, errFull, b.Write(&part, frames))
	require.True(t, bytes.Equal(whole.Bytes()[:5000], part.Bytes()))
}
