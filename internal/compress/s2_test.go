package compress

import (
	"bytes"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/stretchr/testify/require"
)

// TestEndOfS2BlockIsLiteral checks that encodeS2 ends a block of at least s2TailFrom bytes with a
// literal, even if the bytes repeat themselves to the end. The block is in the memory of dst, and a
// plain decoder of S2 decodes it.
func TestEndOfS2BlockIsLiteral(t *testing.T) {
	for _, n := range []int{s2TailFrom, 1<<14 - 1, 1 << 14, 1<<14 + s2Tail - 1, 1<<14 + s2Tail, BlockSize - 1, BlockSize} {
		for _, name := range []string{"zeros", "text", "random", "other half"} {
			src := contents[name](n)
			dst := make([]byte, s2.MaxEncodedLen(n)+s2Tail)
			coded := encodeS2(dst, src)
			require.Equal(t, &dst[0], &coded[0], "in the memory that it was given")
			back, err := s2.Decode(nil, coded)
			require.NoError(t, err)
			require.True(t, bytes.Equal(src, back), "%s, %d bytes", name, n)
			if n < 1<<14 || n >= 1<<14+s2Tail { // otherwise the encoded lengths of both differ in size
				tail := append([]byte{s2Literal}, src[n-s2Tail:]...)
				require.True(t, bytes.HasSuffix(coded, tail), "%s, %d bytes", name, n)
			}
		}
	}
}

// TestShortS2BlockIsPlain checks that encodeS2 encodes a block of less than s2TailFrom bytes as
// s2.Encode does.
func TestShortS2BlockIsPlain(t *testing.T) {
	for _, n := range []int{1, 100, s2TailFrom - 1} {
		src := make([]byte, n)
		require.Equal(t, s2.Encode(nil, src), encodeS2(nil, src))
	}
}
