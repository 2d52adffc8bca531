package dist_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
)

// complexArgs stacks ten tensors on another worker, of which every second one requires a gradient. It
// requires the result, the edges of the send node, and which workers the Context knows.
func complexArgs(k kind, m mode) script {
	return func(t require.TestingT, w *worker) {
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			var all, leaves []variable
			for i := range 10 {
				all = append(all, k.leaf(i%2 == 0))
				if i%2 == 0 {
					leaves = append(leaves, all[i])
				}
			}
			to := w.next()
			ret := exec(t, ctx, w, m, to, stackStep(all...))
			k.require(t, ret)
			want, err := autograd.Stack(ctx, all, 0)
			require.NoError(t, err)
			requireSame(t, want.Value(), ret.Value())

			current := dist.FromContext(ctx)
			require.Len(t, current.Sends(), 1)
			edges := current.Sends()[0].Edges()
			require.Len(t, edges, len(leaves))
			for i, x := range leaves {
				require.Equal(t, accumulateName, edges[i].Node.Name())
				require.Same(t, x, edges[i].Node.Leaf())
			}
			require.Equal(t, []string{string(to)}, current.KnownWorkers())
		})
	}
}

// TestParityComplexArgs has the cases of calls with a list of tensors.
func TestParityComplexArgs(t *testing.T) {
	bothKinds(t, "test_rpc_complex_args", func(k kind) script { return complexArgs(k, rpcSync) })
	bothKinds(t, "test_remote_complex_args", func(k kind) script { return complexArgs(k, remote) })
}

// cleansUp calls all other workers or, if nested is true, the next one, which is to call the one after
// it. It requires that no worker has a part of the Context soon after the Context is closed.
func cleansUp(nested bool, call func(t require.TestingT, ctx context.Context, w *worker, to agent.To)) script {
	return func(t require.TestingT, w *worker) {
		var id dist.ID
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			id = c.ID()
			distances := []int{1, 2, 3}
			if nested {
				distances = []int{1}
			}
			for _, distance := range distances {
				call(t, ctx, w, w.at(distance))
				w.markDone(t, ctx, c, distance)
				if nested {
					w.markDone(t, ctx, c, distance+1)
				}
			}
		})
		_, err := id.Context(w.Agent)
		require.ErrorIs(t, err, dist.ErrNoContext)
		w.barrier(t)
		told := parityWorld - 1
		if nested {
			told = 2
		}
		require.Len(t, w.marks.all(), told)
		w.requireCleanedUp(t)
	}
}

// callAdd adds two tensors by a builtin operator, with the first one twice if y is nil.
func callAdd(x, y func() variable) func(t require.TestingT, ctx context.Context, w *worker, to agent.To) {
	return func(t require.TestingT, ctx context.Context, w *worker, to agent.To) {
		t1 := x()
		t2 := t1
		if y != nil {
			t2 = y()
		}
		exec(t, ctx, w, rpcSync, to, addStep(t1, t2))
	}
}

// TestParityCleanup has the cases in which closed Contexts end on all workers.
func TestParityCleanup(t *testing.T) {
	leaf := func(k kind, requiresGrad bool) func() variable {
		return func() variable { return k.leaf(requiresGrad) }
	}
	bothKinds(t, "test_context_cleanup_tensor_with_grad", func(k kind) script {
		return cleansUp(false, callAdd(leaf(k, true), leaf(k, true)))
	})
	bothKinds(t, "test_context_cleanup_tensor_no_grad", func(k kind) script {
		return cleansUp(false, callAdd(leaf(k, false), nil))
	})
	bothKinds(t, "test_context_cleanup_nested_rpc", func(k kind) script {
		return cleansUp(true, func(t require.TestingT, ctx context.Context, w *worker, to agent.To) {
			exec(t, ctx, w, rpcSync, to, nestedStep(k.leaf(true), k.leaf(true), w.rank+1, 0))
		})
	})
}
