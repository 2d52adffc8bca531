package dist_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
)

// gradientsOf returns the gradients of the Context with that number on the worker of a.
func gradientsOf(a *agent.Agent, id dist.ID) (map[variable]autograd.Value, error) {
	c, err := id.Context(a)
	if err != nil {
		return nil, err
	}
	return c.Gradients(), nil
}

// backwardOf computes the gradients of loss in the Context with that number on the worker of a.
func backwardOf(ctx context.Context, a *agent.Agent, id dist.ID, loss variable) error {
	c, err := id.Context(a)
	if err != nil {
		return err
	}
	return c.Backward(ctx, loss)
}

// requireOnes requires that grads has the gradients of leaves and no others, and that all elements are 1.
func requireOnes(t require.TestingT, grads map[variable]autograd.Value, leaves ...variable) {
	require.Len(t, grads, len(leaves))
	for _, x := range leaves {
		require.Contains(t, grads, x)
		require.Equal(t, x.Shape(), grads[x].Shape())
		requireFilled(t, 1, grads[x])
	}
}

// inGoroutine runs f on a new goroutine, and waits for its result.
func inGoroutine[R any](t require.TestingT, f func() (R, error)) R {
	type result struct {
		value R
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	r := <-done
	require.NoError(t, r.err)
	return r.value
}

// TestParityJitNumbers has the cases of functions that PyTorch compiles and that know a Context by its
// number.
func TestParityJitNumbers(t *testing.T) {
	inOneProcess(t, "jit/JitDistAutogradTest.test_get_gradients", func(t require.TestingT, w *worker) {
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			t1, t2 := random(3, 3), random(3, 3)
			t3, err := autograd.Add(ctx, t1, t2)
			require.NoError(t, err)
			require.NoError(t, c.Backward(ctx, sum(t, ctx, t3)))
			grads, err := gradientsOf(w.Agent, c.ID())
			require.NoError(t, err)
			requireOnes(t, grads, t1, t2)
		})
	})
	inOneProcess(t, "jit/JitDistAutogradTest.test_dist_backward", func(t require.TestingT, w *worker) {
		if w.rank != 0 {
			return
		}
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			t1, t2 := random(3, 3), random(3, 3)
			loss := sum(t, ctx, exec(t, ctx, w, rpcSync, w.at(1), addStep(t1, t2)))
			require.NoError(t, backwardOf(ctx, w.Agent, c.ID(), loss))
			requireOnes(t, c.Gradients(), t1, t2)
		})
	})
}

// TestParityJitGoroutines has the cases in which calls of a Context are made on other goroutines, to
// which it comes by the context.Context.
func TestParityJitGoroutines(t *testing.T) {
	inOneProcess(t, "jit/JitDistAutogradTest.test_jit_fork_within_context", func(t require.TestingT, w *worker) {
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			t1, t2 := random(3, 3), random(3, 3)
			res := inGoroutine(t, func() (variable, error) {
				return pyAdd.Go(ctx, w.Agent, w.at(1), pair{t1, t2}).Wait(ctx)
			})
			require.NoError(t, c.Backward(ctx, sum(t, ctx, res)))
			requireOnes(t, c.Gradients(), t1, t2)
		})
	})
	inOneProcess(t, "jit/JitDistAutogradTest.test_restore_context_after_swtich_to_jit_thread", func(t require.TestingT, w *worker) {
		if w.rank != 0 {
			return
		}
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			t1, t2 := parameter(1, 2, 3), parameter(1, 2, 3)
			var losses []variable
			call := func(x variable) *agent.Future[variable] { return pyAdd.Go(ctx, w.Agent, w.at(1), pair{x, x}) }
			first := call(t1)
			second := inGoroutine(t, func() (*agent.Future[variable], error) { // waits, and calls again
				res, err := first.Wait(ctx)
				if err != nil {
					return nil, err
				}
				loss, err := autograd.Sum(ctx, res)
				losses = append(losses, loss)
				return call(t2), err
			})
			res, err := second.Wait(ctx)
			require.NoError(t, err)
			losses = append(losses, sum(t, ctx, res))
			require.NoError(t, c.Backward(ctx, losses...))
			grads := c.Gradients()
			require.Len(t, grads, 2)
			require.Contains(t, grads, t1)
			require.Contains(t, grads, t2)
			requireFilled(t, 2, grads[t1])
			requireSame(t, grads[t1], grads[t2])
		})
	})
}
