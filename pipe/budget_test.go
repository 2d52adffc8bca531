package pipe

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
		b := newBudget(10)
		require.True(t, b.tryAcquire(8))
		var order []int
		var mu sync.Mutex
		wait := func(n int) {
			go func() {
				require.True(t, b.acquire(t.Context(), nil, n))
				mu.Lock()
				order = append(order, n)
				mu.Unlock()
			}()
			synctest.Wait()
		}
		wait(5)
		wait(2) // would fit, but stands behind the 5
		require.Empty(t, order)
		require.False(t, b.tryAcquire(1))
		b.release(3)
		synctest.Wait()
		require.Equal(t, []int{5}, order)
		b.release(2)
		synctest.Wait()
		require.Equal(t, []int{5, 2}, order)
		require.Equal(t, 10, b.inUse())
	})
}

func TestBudgetLetsTheLargePassAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(10)
		require.True(t, b.tryAcquire(1))
		granted := make(chan bool, 1)
		go func() { granted <- b.acquire(t.Context(), nil, 1000) }()
		synctest.Wait()
		require.Empty(t, granted)
		b.release(1)
		require.True(t, <-granted)
		require.False(t, b.tryAcquire(1))
		b.release(1000)
		require.Zero(t, b.inUse())
	})
}

func TestBudgetWaitersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(10)
		require.True(t, b.tryAcquire(10))
		ctx, cancel := context.WithCancel(t.Context())
		stop := make(chan struct{})
		results := make(chan bool, 3)
		go func() { results <- b.acquire(ctx, nil, 10) }()
		synctest.Wait()
		go func() { results <- b.acquire(t.Context(), stop, 5) }()
		synctest.Wait()
		go func() { results <- b.acquire(t.Context(), nil, 4) }()
		synctest.Wait()
		cancel()
		require.False(t, <-results)
		close(stop)
		require.False(t, <-results)
		b.release(10)
		require.True(t, <-results)
		require.Equal(t, 4, b.inUse())
	})
}

// Whatever the demands, what is out never exceeds the budget unless one demand
// alone does, and nobody is left waiting.
func TestBudgetProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, 100).Draw(rt, "size")
		demands := rapid.SliceOf(rapid.IntRange(0, 150)).Draw(rt, "demands")
		b := newBudget(size)
		var mu sync.Mutex
		out := map[int]int{}
		var wg sync.WaitGroup
		for i, n := range demands {
			wg.Go(func() {
				if !b.acquire(context.Background(), nil, n) {
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
				b.release(n)
			})
		}
		wg.Wait()
		require.Zero(rt, b.inUse())
	})
}
