package ringsession_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/shm/internal/ringsession"
)

// One batch neither fills a ring nor empties it, so that both ends can copy at the same time.
func TestBatchIsPartOfTheRing(t *testing.T) {
	for _, kind := range []ringsession.RingKind{ringsession.LargeRing, ringsession.SmallRing} {
		ring, header, size := ringsession.NewRing(kind)
		p := make([]byte, size)
		n, err := ringsession.WriteOnce(ring, p)
		require.NoError(t, err)
		require.Positive(t, n)
		require.LessOrEqual(t, n, size/4)

		binary.NativeEndian.PutUint64(header, uint64(size)) // the ring is full
		n, err = ringsession.ReadOnce(ring, p)
		require.NoError(t, err)
		require.Positive(t, n)
		require.LessOrEqual(t, n, size/4)
	}
}

// A writer that is blocked because the ring was full is woken when half of it is free.
func TestBlockedWriterIsWokenAtHalf(t *testing.T) {
	ring, _, size := ringsession.NewRing(ringsession.LargeRing)
	start, half := uint64(1<<40), uint64(size/2)
	require.False(t, ringsession.ShouldWakeWriter(ring, start+2*half, start+1))
	require.False(t, ringsession.ShouldWakeWriter(ring, start+2*half, start+half-1))
	require.True(t, ringsession.ShouldWakeWriter(ring, start+2*half, start+half))
	require.True(t, ringsession.ShouldWakeWriter(ring, start+2*half, start+2*half))
}

// The bytes of one call, in any number of pieces, are published in several batches, so that the reader
// can copy at the same time.
func TestPiecesArePublishedInBatches(t *testing.T) {
	total := ringsession.UnchargedRegion / 2
	for name, size := range map[string]int{"one": total, "large": total / 4, "small": 100, "tiny": 1} {
		t.Run(name, func(t *testing.T) {
			ring, header, _ := ringsession.NewRing(ringsession.LargeRing)
			pieces := slices.Collect(slices.Chunk(make([]byte, total), size))
			shown, batches := 0, 0
			n, err := ringsession.WriteAll(ring, pieces, func() {
				batches++
				head := int(binary.NativeEndian.Uint64(header))
				require.Greater(t, head, shown)
				require.LessOrEqual(t, head-shown, total/4)
				shown = head
			})
			require.NoError(t, err)
			require.Equal(t, total, n)
			require.Equal(t, total, shown)
			require.LessOrEqual(t, batches, total/(16<<10)+1, "each publication stalls the writer")
		})
	}
}

// All reads of a large part are recognized as such, even if its first bytes were read together with
// the bytes before them. Reads after its end are not.
func TestLargeParts(t *testing.T) {
	const batch = 256 << 10
	large := ringsession.InLargePart(batch, 1<<20-8000, 3<<18-8000, 1<<19-8000, 100, batch, 1<<21, 7<<18, 7<<18, 40)
	require.Equal(t, []bool{true, true, true, false, false, true, true, true, false}, large)
}
