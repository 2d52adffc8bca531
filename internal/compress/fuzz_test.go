package compress

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzUnpack decodes anything: without a panic, without memory beyond what a
// block takes, and with the same outcome next to the form and upon it.
func FuzzUnpack(f *testing.F) {
	c := New(1)
	for _, codec := range bothCodecs {
		for _, content := range contents {
			if form := pack(f, c, codec, [][]byte{content(1000)}); form != nil {
				f.Add(byte(codec), 1000, form)
			}
		}
		for _, form := range hostile(f) {
			f.Add(byte(codec), 1000, form)
		}
		f.Add(byte(codec), BlockSize+9, pack(f, c, codec, [][]byte{contents["half"](BlockSize + 9)}))
	}
	f.Fuzz(func(t *testing.T, codec byte, n int, form []byte) {
		if n < 0 || n > 2*BlockSize || codec == 0 || !Codec(codec).Known() {
			return
		}
		apart, upon := make([]byte, n+1), make([]byte, n+1)
		var err error
		bounded(t, 4*BlockSize+4*len(form), func() { err = c.Unpack(Codec(codec), [][]byte{apart[:n]}, form, always) })
		require.Zero(t, apart[n])
		if len(form) > n {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		copy(upon[n-len(form):], form)
		again := c.UnpackInPlace(Codec(codec), [][]byte{upon[:n/2], upon[n/2 : n]}, len(form), always)
		require.Equal(t, err == nil, again == nil)
		require.Zero(t, upon[n])
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		require.True(t, bytes.Equal(apart, upon))
	})
}

// bounded runs f and fails if it allocates more than n bytes, and what a decoder
// takes when it is made.
func bounded(t *testing.T, n int, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(n+8<<20))
}
