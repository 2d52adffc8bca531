package fifo_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// After random operations a Queue has the same elements as a slice on which they were performed.
func TestLikeASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q fifo.Queue[int]
		var model []int
		next := 0
		for range rapid.IntRange(0, 50).Draw(t, "steps") {
			for range rapid.IntRange(0, 100).Draw(t, "pushes") {
				q.Push(next)
				model = append(model, next)
				next++
			}
			for range rapid.IntRange(0, len(model)).Draw(t, "pops") {
				require.Equal(t, model[0], q.Front())
				require.Equal(t, model[0], q.Pop())
				model = model[1:]
			}
			e := rapid.IntRange(0, next).Draw(t, "element")
			i := slices.Index(model, e)
			require.Equal(t, i >= 0, q.Remove(func(x int) bool { return x == e }))
			if i >= 0 {
				model = slices.Delete(model, i, i+1)
			}
			require.Equal(t, len(model), q.Len())
			for i, want := range model {
				require.Equal(t, want, *q.At(i))
			}
		}
		require.Equal(t, model, append(model[:0:0], q.Clear()...))
		require.Zero(t, q.Len())
	})
}

func TestSteadyFlowAllocatesNothing(t *testing.T) {
	var q fifo.Queue[int]
	for range 1000 { // never empty, as with a peer that is always behind
		q.Push(0)
	}
	require.Zero(t, testing.AllocsPerRun(10_000, func() {
		q.Push(0)
		q.Pop()
	}))
}

// A Queue does not refer to elements that were removed.
func TestNothingIsKept(t *testing.T) {
	var q fifo.Queue[*int]
	for range 3 {
		q.Push(new(int))
	}
	front := q.At(0)
	last := q.At(2)
	q.Remove(func(e *int) bool { return e == *last })
	q.Pop()
	require.Nil(t, *front)
	require.Nil(t, *last)
}
