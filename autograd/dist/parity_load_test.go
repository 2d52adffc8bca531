package dist_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
)

// requireBetween requires that the number with that name in info is in the range from low to high.
func requireBetween(t require.TestingT, info map[string]string, name string, low, high int) {
	n, err := strconv.Atoi(info[name])
	require.NoError(t, err)
	require.True(t, n >= low && n <= high, "%s is %d", name, n)
}

// addAtOthers adds y to x on each other worker, one after the other.
func addAtOthers(t require.TestingT, ctx context.Context, w *worker, x, y variable) variable {
	for rank := range parityWorld {
		if rank != w.rank {
			x = exec(t, ctx, w, rpcSync, agent.To(fmt.Sprint("worker", rank)), addStep(x, y))
		}
	}
	return x
}

// TestParityInfo has the case of the numbers of contexts and passes, while four passes run and after
// that.
func TestParityInfo(t *testing.T) {
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_debug_info", func(t require.TestingT, w *worker) {
		t1, t2 := random(3, 3), random(3, 3)
		var id dist.ID
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			id = c.ID()
			x := addAtOthers(t, ctx, w, t1, t2)
			called := false
			out, err := autograd.Apply(ctx, "TestDebugInfoFunc", []variable{x},
				func(context.Context) ([]autograd.Value, error) { return []autograd.Value{x.Value()}, nil },
				func(_ context.Context, grads []autograd.Value) ([]autograd.Value, error) {
					called = true
					requireBetween(t, torch.AutogradInfo(w.graph), "num_current_backward_passes", 1, parityWorld)
					return grads, nil
				})
			require.NoError(t, err)
			x = addAtOthers(t, ctx, w, out[0], t2)
			require.NoError(t, c.Backward(ctx, sum(t, ctx, x)))
			require.True(t, called)
			requireSame(t, constant(1, 3, 3).Value(), c.Gradients()[t1])
			requireSame(t, constant(6, 3, 3).Value(), c.Gradients()[t2])
			requireBetween(t, torch.AutogradInfo(w.graph), "num_autograd_contexts", 1, parityWorld)
		})
		for distance := 1; distance < parityWorld; distance++ {
			_, err := setDone.Call(w.ctx, w.Agent, w.at(distance), mark{id, distance})
			require.NoError(t, err)
		}
		w.barrier(t)
		info := torch.AutogradInfo(w.graph)
		require.Len(t, info, 2)
		require.Equal(t, "0", info["num_current_backward_passes"])
		require.Len(t, w.marks.all(), parityWorld-1)
		w.requireCleanedUp(t)
		require.Equal(t, "0", torch.AutogradInfo(w.graph)["num_autograd_contexts"])
	})
}

// workload computes four results on worker0, one after the other, and the gradients of the last one, in a
// Context of its own. It requires that they are those of a pass without calls.
func workload(t require.TestingT, w *worker) {
	t1, t2 := random(3, 3), random(3, 3)
	chain := func(ctx context.Context, m mode) variable {
		t3 := exec(t, ctx, w, m, "worker0", addStep(t1, t2))
		t4 := exec(t, ctx, w, m, "worker0", mulStep(t2, t3))
		t5 := exec(t, ctx, w, m, "worker0", matMulStep(t3, t4))
		return sum(t, ctx, exec(t, ctx, w, m, "worker0", addStep(t4, t5)))
	}
	want := verifyBackwards(t, w.ctx, local, nil, nil, []variable{chain(w.ctx, local)}, t1, t2)
	w.inContext(t, func(ctx context.Context, c *dist.Context) {
		verifyBackwards(t, ctx, rpcSync, c, want, []variable{chain(ctx, rpcSync)}, t1, t2)
	})
}

// TestParityLoad has the case of 60 passes through one worker at once.
func TestParityLoad(t *testing.T) {
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_async_dist_autograd", func(t require.TestingT, w *worker) {
		if w.rank != 0 {
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() { workload(t, w) })
			}
			wg.Wait()
		}
		w.barrier(t)
	})
}
