package dist_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// seen is an operator that keeps the gradient with which its backward function was called last.
type seen struct{ grad autograd.Value }

// sum adds x and y. Both get the same gradient, the one that was seen.
func (s *seen) sum(t require.TestingT, ctx context.Context, x, y variable) variable {
	out, err := autograd.Apply(ctx, "MyFunc", []variable{x, y}, func(ctx context.Context) ([]autograd.Value, error) {
		z, err := autograd.Add(autograd.NoGrad(ctx), x, y)
		if err != nil {
			return nil, err
		}
		return []autograd.Value{z.Value()}, nil
	}, func(_ context.Context, grads []autograd.Value) ([]autograd.Value, error) {
		s.grad = grads[0]
		return []autograd.Value{grads[0], grads[0]}, nil
	})
	require.NoError(t, err)
	return out[0]
}

// identity returns x, which gets the gradient that was seen.
func (s *seen) identity(t require.TestingT, ctx context.Context, x variable) variable {
	out, err := autograd.Apply(ctx, "MyFuncSingleGrad", []variable{x}, func(context.Context) ([]autograd.Value, error) {
		return []autograd.Value{x.Value()}, nil
	}, func(_ context.Context, grads []autograd.Value) ([]autograd.Value, error) {
		s.grad = grads[0]
		return grads, nil
	})
	require.NoError(t, err)
	return out[0]
}

// scalarOf returns one element that depends on x. The gradient of x is one element, expanded to the
// shape of x, and so not contiguous.
func scalarOf(t require.TestingT, ctx context.Context, x variable) variable {
	out, err := autograd.Apply(ctx, "NonContGradFunc", []variable{x}, func(context.Context) ([]autograd.Value, error) {
		return []autograd.Value{constant(1, 1).Value()}, nil
	}, func(context.Context, []autograd.Value) ([]autograd.Value, error) {
		g, err := constant(1, 1).Tensor().Expand(x.Shape()...)
		return []autograd.Value{autograd.Dense(g)}, err
	})
	require.NoError(t, err)
	return out[0]
}

// element returns element [1][0] of x.
func element(t require.TestingT, ctx context.Context, x variable) variable {
	row, err := autograd.Select(ctx, x, 0, 1)
	require.NoError(t, err)
	e, err := autograd.Select(ctx, row, 0, 0)
	require.NoError(t, err)
	return e
}

// storageOf returns the memory of the elements of g, of those that are listed if it is sparse.
func storageOf(g autograd.Value) *tensor.Storage {
	if s := g.Sparse(); s != nil {
		return s.Values().Storage()
	}
	return g.Tensor().Storage()
}

// TestParityGradientMemory has the cases of which memory becomes the gradient of a leaf: that of the
// gradient which comes to the leaf, if nothing else holds it and it is contiguous, and otherwise a copy.
func TestParityGradientMemory(t *testing.T) {
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_no_grad_copy", func(t require.TestingT, w *worker) {
		a, b := random(5, 6), random(5, 6)
		requireCopies := func(c *dist.Context, s *seen) (x, y autograd.Value) {
			grads := c.Gradients()
			require.Len(t, grads, 2)
			require.Contains(t, grads, a)
			require.Contains(t, grads, b)
			require.NotSame(t, storageOf(s.grad), storageOf(grads[a]))
			require.NotSame(t, storageOf(s.grad), storageOf(grads[b]))
			return grads[a], grads[b]
		}
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			s := &seen{}
			require.NoError(t, c.Backward(ctx, scalarOf(t, ctx, s.sum(t, ctx, a, b))))
			require.False(t, s.grad.Tensor().IsContiguous())
			x, y := requireCopies(c, s)
			requireFilled(t, 1, x)
			requireFilled(t, 1, y)
			require.True(t, x.Tensor().IsContiguous())
		})
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			s := &seen{}
			require.NoError(t, c.Backward(ctx, element(t, ctx, s.identity(t, ctx, a))))
			x, err := c.Gradient(a)
			require.NoError(t, err)
			require.Same(t, storageOf(s.grad), storageOf(x), "it was not copied")
			require.Equal(t, s.grad.Tensor().Offset(), x.Tensor().Offset())
		})
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			s := &seen{}
			require.NoError(t, c.Backward(ctx, element(t, ctx, s.sum(t, ctx, a, b))))
			x, y := requireCopies(c, s)
			require.NotSame(t, storageOf(x), storageOf(y))
			requireSame(t, x, y)
		})
	})
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_grad_copy_sparse_indices_extra_ref", func(t require.TestingT, w *worker) {
		a := random(10, 3)
		bags := autograd.Bags{
			Indices: integers(1, 2, 4, 5, 4, 3, 2, 9), Offsets: integers(0, 4),
			Options: ops.BagOptions{Mode: ops.BagMean}, Sparse: true,
		}
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			s := &seen{}
			bag, err := autograd.EmbeddingBag(ctx, s.identity(t, ctx, a), bags)
			require.NoError(t, err)
			require.NoError(t, c.BackwardWith(ctx, dist.PassOptions{RetainGraph: true}, sum(t, ctx, bag)))
			require.NotNil(t, s.grad.Sparse())
			indices, values := s.grad.Sparse().Indices(), s.grad.Sparse().Values()
			require.NotNil(t, indices)
			require.NotNil(t, values)
			x, err := c.Gradient(a)
			require.NoError(t, err)
			require.NotNil(t, x.Sparse())
			require.Same(t, values.Storage(), x.Sparse().Values().Storage(), "it was not copied")
			require.Equal(t, values.Offset(), x.Sparse().Values().Offset())
			require.Same(t, indices.Storage(), x.Sparse().Indices().Storage())
		})
	})
}

// integers returns a Variable of these int64 elements. It panics on an error.
func integers(values ...int64) variable {
	x, err := tensor.FromSlice(values, len(values))
	if err != nil {
		panic(err)
	}
	return autograd.Constant(x)
}

// TestParityPostHooks has the case of hooks on the node of a leaf, which is added to itself.
func TestParityPostHooks(t *testing.T) {
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_post_hooks", func(t require.TestingT, w *worker) {
		var mu sync.Mutex
		var called []int
		hook := func(n int) autograd.PostHook {
			return func(_ context.Context, arguments, results []autograd.Value) error {
				mu.Lock()
				defer mu.Unlock()
				called = append(called, n)
				return nil
			}
		}
		x := random(10, 10)
		a, err := autograd.Add(w.ctx, x, x)
		require.NoError(t, err)
		edges := a.Node().Edges()
		require.Len(t, edges, 2)
		edges[0].Node.AddPostHook(hook(1))
		edges[0].Node.AddPostHook(hook(2))
		edges[1].Node.AddPostHook(hook(2))
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			require.NoError(t, c.Backward(ctx, sum(t, ctx, a)))
			require.Equal(t, []int{1, 2, 2}, called, "in order, after the node; together 5")
			grads := c.Gradients()
			require.Len(t, grads, 1)
			require.Contains(t, grads, x)
			requireFilled(t, 2, grads[x])
		})
	})
}
