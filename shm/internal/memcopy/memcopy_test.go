package memcopy_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/shm/internal/memcopy"
)

var kinds = []struct {
	name string
	copy func(dst, src []byte) int
}{
	{"NonTemporal", memcopy.NonTemporal},
	{"FastString", memcopy.FastString},
}

// Every byte is copied to its destination, for all lengths and alignments, and no other byte is
// changed.
func TestCopy(t *testing.T) {
	const most, guard = 20 << 10, 256
	random := rand.New(rand.NewPCG(1, 2))
	src := make([]byte, most+guard)
	for i := range src {
		src[i] = byte(1 + random.IntN(255))
	}
	sizes := []int{0, 1, 127, 4095, 4096, 4097, 4096 + 63, 4096 + 127, 4096 + 128, 8191, 16 << 10, most}
	for range 200 {
		sizes = append(sizes, random.IntN(most))
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			for _, n := range sizes {
				dst := make([]byte, most+2*guard)
				from, to := random.IntN(guard), guard+random.IntN(guard)
				require.Equal(t, n, k.copy(dst[to:to+n], src[from:from+n]))
				require.True(t, bytes.Equal(src[from:from+n], dst[to:to+n]), "%d bytes from %d to %d", n, from, to)
				require.Equal(t, len(dst)-n, bytes.Count(dst, []byte{0}), "bytes beside")
			}
		})
	}
}

// Both functions copy as many bytes as the shorter of dst and src has.
func TestCopyTheShorter(t *testing.T) {
	for _, k := range kinds {
		long, short := bytes.Repeat([]byte{1}, 10_000), bytes.Repeat([]byte{2}, 9_000)
		require.Equal(t, 9_000, k.copy(long, short), k.name)
		require.Equal(t, 9_000, bytes.LastIndexByte(long, 2)+1, k.name)
		require.Equal(t, 9_000, k.copy(short, bytes.Repeat([]byte{3}, 10_000)), k.name)
		require.Zero(t, k.copy(nil, long), k.name)
	}
}

func BenchmarkCopy(b *testing.B) {
	const most = 64 << 20
	src, dst := make([]byte, most), make([]byte, most)
	for _, n := range []int{16 << 10, 256 << 10} {
		for _, k := range append(kinds, struct {
			name string
			copy func(dst, src []byte) int
		}{"copy", func(dst, src []byte) int { return copy(dst, src) }}) {
			b.Run(fmt.Sprintf("%s/%d", k.name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for at := 0; b.Loop(); at = (at + n) % most {
					k.copy(dst[at:at+n], src[at:at+n])
				}
			})
		}
	}
}
