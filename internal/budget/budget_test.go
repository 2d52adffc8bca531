package budget

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBudgetServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(10)
		require.True(t, b.TryAcquire(8))
		var order []int
		var mu sync.Mutex
		wait := func(n int) {
			go func() {
				require.True(t, b.Acquire(t.Context(), nil, n))
				mu.Lock()
				order = append(order, n)
				mu.Unlock()
			}()
			synctest.Wait()
		}
		wait(5)
		wait(2) // would fit, but the 5 are first in order
		require.Empty(t, order)
		require.False(t, b.TryAcquire(1))
		b.Release(3)
		synctest.Wait()
		require.Equal(t, []int{5}, order)
		b.Release(2)
		synctest.Wait()
		require.Equal(t, []int{5, 2}, order)
		require.Equal(t, 10, b.InUse())
	})
}

func TestBudgetLetsTheLargePassAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(10)
		require.True(t, b.TryAcquire(1))
		granted := make(chan bool, 1)
		go func() { granted <- b.Acquire(t.Context(), nil, 1000) }()
		synctest.Wait()
		require.Empty(t, granted)
		b.Release(1)
		require.True(t, <-granted)
		require.False(t, b.TryAcquire(1))
		b.Release(1000)
		require.Zero(t, b.InUse())
	})
}

func TestBudgetWaitersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(10)
		require.True(t, b.TryAcquire(10))
		ctx, cancel := context.WithCancel(t.Context())
		stop := make(chan struct{})
		results := make(chan bool, 3)
		go func() { results <- b.Acquire(ctx, nil, 10) }()
		synctest.Wait()
		go func() { results <- b.Acquire(t.Context(), stop, 5) }()
		synctest.Wait()
		go func() { results <- b.Acquire(t.Context(), nil, 4) }()
		synctest.Wait()
		cancel()
		require.False(t, <-results)
		close(stop)
		require.False(t, <-results)
		b.Release(10)
		require.True(t, <-results)
		require.Equal(t, 4, b.InUse())
	})
}

// The acquired bytes never exceed the budget, except for a single request that does, and no request
// waits indefinitely.
func TestBudgetProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, 100).Draw(rt, "size")
		demands := rapid.SliceOf(rapid.IntRange(0, 150)).Draw(rt, "demands")
		b := New(size)
		var mu sync.Mutex
		out := map[int]int{}
		var wg sync.WaitGroup
		for i, n := range demands {
			wg.Go(func() {
				if !b.Acquire(context.Background(), nil, n) {
					panic("not granted")
				}
				mu.Lock()
				out[i] = n
				sum, holders := 0, 0
				for _, v := range out {
					sum += v
					if v > 0 {
						holders++
					}
				}
				if sum > size && holders > 1 {
					panic("over the budget")
				}
				delete(out, i)
				mu.Unlock()
				b.Release(n)
			})
		}
		wg.Wait()
		require.Zero(rt, b.InUse())
	})
}
