package compress

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzDecompress decompresses arbitrary bytes. Decompression must not panic, must allocate no more
// than some blocks, and must have the same result into other memory and in place.
func FuzzDecompress(f *testing.F) {
	c := New(1)
	for _, codec := range bothCodecs {
		for _, content := range contents {
			if compressed := compressParts(f, c, codec, [][]byte{content(1000)}); compressed != nil {
				f.Add(byte(codec), 1000, compressed)
			}
		}
		for _, compressed := range hostile(f) {
			f.Add(byte(codec), 1000, compressed)
		}
		f.Add(byte(codec), BlockSize+9, compressParts(f, c, codec, [][]byte{contents["half"](BlockSize + 9)}))
	}
	f.Fuzz(func(t *testing.T, codec byte, n int, compressed []byte) {
		if n < 0 || n > 2*BlockSize || codec == 0 || !Codec(codec).Known() {
			return
		}
		separate, upon := make([]byte, n+1), make([]byte, n+1)
		var err error
		bounded(t, 4*BlockSize+4*len(compressed), func() { err = c.Decompress(Codec(codec), [][]byte{separate[:n]}, compressed, always) })
		require.Zero(t, separate[n])
		if len(compressed) > n {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		copy(upon[n-len(compressed):], compressed)
		again := c.DecompressInPlace(Codec(codec), [][]byte{upon[:n/2], upon[n/2 : n]}, len(compressed), always)
		require.Equal(t, err == nil, again == nil)
		require.Zero(t, upon[n])
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		require.True(t, bytes.Equal(separate, upon))
	})
}

// bounded calls f and fails the test if f allocates more than n bytes and 8 MiB, the size of a
// decoder.
func bounded(t *testing.T, n int, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(n+8<<20))
}
