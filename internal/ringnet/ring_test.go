package ringnet_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
)

// One call neither fills a ring nor empties it: while one end copies so can the
// other.
func TestPieceIsAPartOfTheRing(t *testing.T) {
	for _, kind := range []ringnet.RingKind{ringnet.LargeRing, ringnet.SmallRing} {
		ring, header, size := ringnet.NewRing(kind)
		p := make([]byte, size)
		n, err := ringnet.Put(ring, p)
		require.NoError(t, err)
		require.Positive(t, n)
		require.LessOrEqual(t, n, size/4)

		binary.NativeEndian.PutUint64(header, uint64(size)) // all is written
		n, err = ringnet.Take(ring, p)
		require.NoError(t, err)
		require.Positive(t, n)
		require.LessOrEqual(t, n, size/4)
	}
}

// A writer that sleeps because the ring was full is woken when half of it is free.
func TestSleepingWriterIsLeftAlone(t *testing.T) {
	ring, _, size := ringnet.NewRing(ringnet.LargeRing)
	start, half := uint64(1<<40), uint64(size/2)
	require.False(t, ringnet.Roomy(ring, start+2*half, start+1))
	require.False(t, ringnet.Roomy(ring, start+2*half, start+half-1))
	require.True(t, ringnet.Roomy(ring, start+2*half, start+half))
	require.True(t, ringnet.Roomy(ring, start+2*half, start+2*half))
}

// What one call writes, in however many pieces, the other end sees come bit by bit, and
// copies meanwhile.
func TestPiecesShowAsTheyAreCopied(t *testing.T) {
	total := ringnet.UnpaidRegion / 2
	for name, size := range map[string]int{"one": total, "large": total / 4, "small": 100, "tiny": 1} {
		t.Run(name, func(t *testing.T) {
			ring, header, _ := ringnet.NewRing(ringnet.LargeRing)
			pieces := slices.Collect(slices.Chunk(make([]byte, total), size))
			shown, words := 0, 0
			n, err := ringnet.PutAll(ring, pieces, func() {
				words++
				head := int(binary.NativeEndian.Uint64(header))
				require.Greater(t, head, shown)
				require.LessOrEqual(t, head-shown, total/4)
				shown = head
			})
			require.NoError(t, err)
			require.Equal(t, total, n)
			require.Equal(t, total, shown)
			require.LessOrEqual(t, words, total/(16<<10)+1, "each one makes the writer wait")
		})
	}
}

// A part is large until its end, even if a little of it came before; nothing behind it is.
func TestLargeParts(t *testing.T) {
	const stride = 512 << 10
	large := ringnet.Large(stride, 1<<20-8000, 1<<19-8000, 100, stride, 1<<21, 3<<19, 3<<19, 40)
	require.Equal(t, []bool{true, true, false, false, true, true, true, false}, large)
}
