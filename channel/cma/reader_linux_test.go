package cma

import (
	"bytes"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// cut divides p into pieces of random sizes from 1 to most bytes, drawn from r. The pieces share
// the memory of p.
func cut(r *rand.Rand, p []byte, most int) [][]byte {
	var out [][]byte
	for len(p) > 0 {
		n := min(1+r.IntN(most), len(p))
		out = append(out, p[:n])
		p = p[n:]
	}
	return out
}

func segmentsOf(pieces [][]byte) (out []segment) {
	for _, p := range pieces {
		out = append(out, segmentOf(p))
	}
	return out
}

// read copies any range of a tensor to the same position of the destination, however source and
// destination are divided into pieces, and retains no memory of the destination.
func TestRead(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const size = 10_000
	src := make([]byte, size)
	for i := range src {
		src[i] = byte(random.Uint32())
	}
	var r reader
	for _, most := range [][2]int{{size, size}, {3, size}, {size, 3}, {3, 4}, {1, 1}} { // requires up to ten calls
		for range 20 {
			dst := make([]byte, size)
			off := random.IntN(size)
			n := random.IntN(size - off + 1)
			pieces := segmentsOf(cut(random, src, most[1]))
			require.NoError(t, r.read(os.Getpid(), device.Host(cut(random, dst, most[0])...), pieces, off, n))
			want := make([]byte, size)
			copy(want[off:off+n], src[off:])
			require.True(t, bytes.Equal(want, dst), "%v: %d bytes at %d", most, n, off)
		}
	}
	for _, p := range r.pieces[:cap(r.pieces)] {
		require.Nil(t, p, "scratch memory keeps the caller's")
	}
}

// read returns a ReadError with EFAULT if part of the range is not mapped, an error if the source
// is too short, and no error if only bytes beyond the range are missing.
func TestReadFault(t *testing.T) {
	src, dst := []byte("12345678"), make([]byte, 16)
	var r reader
	var fault *ReadError
	err := r.read(os.Getpid(), device.Bytes(dst), []segment{segmentOf(src), {8, 8}}, 0, 16)
	require.ErrorAs(t, err, &fault)
	require.Equal(t, ReadError{os.Getpid(), syscall.EFAULT}, *fault)
	require.Error(t, r.read(os.Getpid(), device.Bytes(dst), []segment{segmentOf(src)}, 0, 16), "there is not as much")
	require.NoError(t, r.read(os.Getpid(), device.Bytes(dst), []segment{segmentOf(src)}, 0, 8))
}
