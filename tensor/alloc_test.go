package tensor

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
)

// TestSmallTensorAllocates checks that a small new tensor takes a single allocation, of its
// elements, Storage, shape and strides together.
func TestSmallTensorAllocates(t *testing.T) {
	if race.Enabled || invariants.Enabled {
		t.Skip("the race detector and the invariants allocate themselves")
	}
	few, many := []int{2, 2}, []int{8, 8}
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _, _ = Zeros(F32, few...) }), 1.0)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _, _ = Zeros(F32, many...) }), 2.0, "elements apart")

	s, err := Heap{}.Alloc(16)
	require.NoError(t, err)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _, _ = FromStorage(s, F32, few...) }), 1.0, "a further view")
}

// TestFirstViews checks that tensors that concurrent calls create over one storage each have their
// own shape and strides, although the first one uses memory of the storage.
func TestFirstViews(t *testing.T) {
	const views = 8
	for range 100 {
		s, err := Heap{}.Alloc(8 * views)
		require.NoError(t, err)
		made := make([]*Tensor, views)
		var all sync.WaitGroup
		for i := range views {
			all.Go(func() { made[i], _ = Strided(s, I64, []int{1, i + 1}, []int{views, 1}, 0) })
		}
		all.Wait()
		for i, x := range made {
			require.Equal(t, []int{1, i + 1}, x.Shape())
			require.Equal(t, []int{views, 1}, x.Strides())
			require.Same(t, s, x.Storage())
		}
	}
}
