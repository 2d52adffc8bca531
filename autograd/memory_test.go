package autograd_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// gradientMemory returns an operator that returns the sum of its arguments' first elements, and whose
// gradients are those that f returns. It is applied to args.
func gradientMemory(t *testing.T, f func() []autograd.Value, args ...*variable) *variable {
	t.Helper()
	results, err := autograd.Apply(t.Context(), "Memory", args, returning(constant([]float64{1}).Value()),
		func(context.Context, []autograd.Value) ([]autograd.Value, error) { return f(), nil })
	require.NoError(t, err)
	return results[0]
}

// TestGradientMemory checks which gradients leaves keep without a copy.
func TestGradientMemory(t *testing.T) {
	contiguous := func() *tensor.Tensor { return constant([]float64{1, 2}, 2).Tensor() }
	expanded := func() *tensor.Tensor {
		x, err := constant([]float64{1}, 1).Tensor().Expand(2)
		require.NoError(t, err)
		return x
	}
	part := func() *tensor.Tensor {
		x, err := constant([]float64{1, 2, 3}, 3).Tensor().Narrow(0, 0, 2)
		require.NoError(t, err)
		return x
	}
	readOnly := func() *tensor.Tensor {
		x := contiguous()
		x.Storage().SetReadOnly(true)
		return x
	}
	for name, c := range map[string]struct {
		make  func() *tensor.Tensor
		owned bool
		moves bool
	}{
		"owned":           {contiguous, true, true},
		"not owned":       {contiguous, false, false},
		"expanded":        {expanded, true, false},
		"part of storage": {part, true, false},
		"read-only":       {readOnly, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			grad, x := c.make(), leaf(t, []float64{2, 3}, 2)
			v := autograd.Dense(grad)
			if c.owned {
				v = autograd.Owned(v)
			}
			root := gradientMemory(t, func() []autograd.Value { return []autograd.Value{v} }, x)
			require.NoError(t, backward(t, root, autograd.RetainGraph()))
			require.Equal(t, c.moves, grad.Storage() == x.Grad().Tensor().Storage())
			require.True(t, x.Grad().Tensor().IsContiguous())
			require.Equal(t, floats(t, grad), floats(t, x.Grad().Tensor()))
			if !c.moves { // later passes add to the copy, and leave the memory of grad
				before := floats(t, constant(append([]float64{}, floats(t, grad)...), 2).Tensor())
				require.NoError(t, backward(t, root))
				require.Equal(t, before, floats(t, grad))
				require.Equal(t, 2*before[0], floats(t, x.Grad().Tensor())[0])
			}
		})
	}
}

// TestGradientMemoryOfTwo checks a gradient of two leaves, which both copy.
func TestGradientMemoryOfTwo(t *testing.T) {
	x, y := leaf(t, []float64{2, 3}, 2), leaf(t, []float64{2, 3}, 2)
	grad := autograd.Owned(constant([]float64{1, 2}, 2).Value())
	root := gradientMemory(t, func() []autograd.Value { return []autograd.Value{grad, grad} }, x, y)
	require.NoError(t, backward(t, root))
	for _, of := range []*variable{x, y} {
		require.NotSame(t, grad.Tensor().Storage(), of.Grad().Tensor().Storage())
		requireGrad(t, of, 1, 2)
	}
	require.NotSame(t, x.Grad().Tensor().Storage(), y.Grad().Tensor().Storage())

	// An addition gives one gradient to both terms, and a graph with one leaf twice adds them.
	do, ctx := must(t), t.Context()
	x, y = leaf(t, []float64{2, 3}, 2), leaf(t, []float64{2, 3}, 2)
	require.NoError(t, backward(t, do(autograd.Sum(ctx, do(autograd.Exp(ctx, do(autograd.Add(ctx, x, y))))))))
	require.NotSame(t, x.Grad().Tensor().Storage(), y.Grad().Tensor().Storage())
	require.Equal(t, floats(t, x.Grad().Tensor()), floats(t, y.Grad().Tensor()))
}

// TestGradientMemoryOfChain checks that a gradient passes through operators without a copy, but for those
// that an application sees.
func TestGradientMemoryOfChain(t *testing.T) {
	ctx, do := t.Context(), must(t)
	for name, c := range map[string]struct {
		watch func(t *testing.T, x, y *variable)
		moves bool
	}{
		"chain": {func(*testing.T, *variable, *variable) {}, true},
		"hook": {func(t *testing.T, _, y *variable) {
			require.NoError(t, y.AddHook(func(_ context.Context, g autograd.Value) (autograd.Value, error) { return g, nil }))
		}, false},
		"hook of the leaf": {func(t *testing.T, x, _ *variable) {
			require.NoError(t, x.AddHook(func(_ context.Context, g autograd.Value) (autograd.Value, error) { return g, nil }))
		}, false},
		"post-hook": {func(_ *testing.T, _, y *variable) {
			y.Node().AddPostHook(func(context.Context, []autograd.Value, []autograd.Value) error { return nil })
		}, false},
		"post-hook of the leaf": {func(_ *testing.T, x, _ *variable) {
			x.Edge().Node.AddPostHook(func(context.Context, []autograd.Value, []autograd.Value) error { return nil })
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			grad := autograd.Owned(constant([]float64{1, 2}, 1, 2).Value())
			x := leaf(t, []float64{2, 3}, 2)
			y := do(autograd.Clone(ctx, do(autograd.Unsqueeze(ctx, x, 0))))
			c.watch(t, x, y)
			require.NoError(t, backward(t, gradientMemory(t, func() []autograd.Value { return []autograd.Value{grad} }, y)))
			require.Equal(t, c.moves, grad.Tensor().Storage() == x.Grad().Tensor().Storage())
			requireGrad(t, x, 1, 2)
		})
	}
}

// TestGradientsOfPostHooks checks that the gradients that a post-hook sees are those before the node, also
// where the node could use their memory for its results.
func TestGradientsOfPostHooks(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x, y := leaf(t, []float64{2, 3}, 2), constant([]float64{5, 7}, 2)
	product := do(autograd.Mul(ctx, do(autograd.MulNumber(ctx, x, 10)), y))
	var calls []string
	product.Node().AddPostHook(recorded(t, &calls, "product"))
	require.NoError(t, backward(t, do(autograd.Sum(ctx, do(autograd.MulNumber(ctx, product, 3))))))
	require.Equal(t, []string{"product [15 21] [3 3]"}, calls)
}

// TestGivenGradients checks that the gradients of roots remain unchanged.
func TestGivenGradients(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x, y := leaf(t, []float64{2, 3}, 2), constant([]float64{5, 7}, 2)
	given := constant([]float64{1, 10}, 2)
	root := do(autograd.MulNumber(ctx, do(autograd.Mul(ctx, x, y)), 3))
	roots := []*variable{root, root, x}
	for range 2 {
		v := autograd.Owned(given.Value())
		require.NoError(t, autograd.Backward(ctx, roots, autograd.RetainGraph(), autograd.WithGradients(v, v, v)))
		require.Equal(t, []float64{1, 10}, floats(t, given.Tensor()))
		require.NotSame(t, given.Tensor().Storage(), x.Grad().Tensor().Storage())
	}
	requireGrad(t, x, 2*31, 2*430)
}

// countingAllocator counts the bytes that it allocates.
type countingAllocator struct{ bytes int }

func (a *countingAllocator) Alloc(size int) (*tensor.Storage, error) {
	a.bytes += size
	return tensor.Heap{}.Alloc(size)
}

// TestEngine checks that operators and passes allocate from the engine of the context, within its limit.
func TestEngine(t *testing.T) {
	do, memory := must(t), &countingAllocator{}
	ctx := autograd.WithEngine(t.Context(), &ops.Engine{Alloc: memory, MaxBytes: 64})
	x := leaf(t, make([]float64, 8), 8)
	y := do(autograd.Exp(ctx, x))
	require.Equal(t, 64, memory.bytes)
	require.NoError(t, autograd.Backward(autograd.NoGrad(ctx), []*variable{y}, autograd.WithGradients(y.Value())))
	require.Equal(t, 128, memory.bytes)
	require.Same(t, autograd.EngineOf(ctx), autograd.EngineOf(autograd.NoGrad(ctx)))
	_, err := autograd.Cat(ctx, []*variable{x, y}, 0)
	var limit *ops.LimitError
	require.ErrorAs(t, err, &limit)
	require.ErrorContains(t, err, "autograd: cat: ")
}
