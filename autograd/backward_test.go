package autograd_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
)

// leaf returns a Variable of F64 that requires a gradient.
func leaf(t *testing.T, values []float64, shape ...int) *variable {
	t.Helper()
	x := constant(values, shape...)
	require.NoError(t, x.RequireGrad())
	return x
}

// must returns a function that returns the result of an operator, and fails the test for an error.
func must(t *testing.T) func(x *variable, err error) *variable {
	return func(x *variable, err error) *variable {
		t.Helper()
		require.NoError(t, err)
		return x
	}
}

// requireGrad fails the test unless x has the given gradient.
func requireGrad(t *testing.T, x *variable, want ...float64) {
	t.Helper()
	dense, err := x.Grad().ToDense()
	require.NoError(t, err)
	require.Equal(t, x.Shape(), dense.Shape())
	dense, err = dense.Contiguous()
	require.NoError(t, err)
	require.InDeltaSlice(t, want, floats(t, dense), 1e-12)
}

// backward computes the gradients of one root.
func backward(t *testing.T, x *variable, options ...autograd.BackwardOption) error {
	t.Helper()
	return autograd.Backward(t.Context(), []*variable{x}, options...)
}

func TestBackwardAccumulates(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x, y := leaf(t, []float64{2, 3}, 2), leaf(t, []float64{5, 7}, 2)
	for i := range 3 {
		n := float64(i + 1)
		require.NoError(t, backward(t, do(autograd.Sum(ctx, do(autograd.Mul(ctx, x, y))))))
		requireGrad(t, x, 5*n, 7*n)
		requireGrad(t, y, 2*n, 3*n)
	}
	x.ZeroGrad()
	require.True(t, x.Grad().IsZero())
	require.False(t, y.Grad().IsZero())
}

func TestBackwardRoots(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x := leaf(t, []float64{2, 3}, 2)
	square := do(autograd.Mul(ctx, x, x))
	sum, root := do(autograd.Sum(ctx, square)), do(autograd.Mean(ctx, square))
	// The roots are a leaf, a Variable on which another root depends, and one of them twice.
	roots := []*variable{x, square, sum, sum, root}
	first, second := constant([]float64{1, 10}, 2), constant([]float64{100, 1000}, 2)
	given := []autograd.Value{first.Value(), second.Value(), {}, {}, {}}
	require.NoError(t, autograd.Backward(ctx, roots, autograd.WithGradients(given...)))
	requireGrad(t, x, 1+4*100+2*4+2, 10+6*1000+2*6+3)
}

func TestBackwardRootsAreChecked(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x := leaf(t, []float64{2, 3}, 2)
	y := do(autograd.Neg(ctx, x))
	for name, c := range map[string]struct {
		roots []*variable
		grads []autograd.Value
		want  error
		text  string
	}{
		"no roots": {nil, nil, autograd.ErrNoTensor, "no tensors provided for gradient computation"},
		"nil":      {[]*variable{nil}, nil, autograd.ErrNoTensor, "element 0 of tensors is nil"},
		"no gradient": {[]*variable{constant([]float64{1})}, nil, autograd.ErrNotRequired,
			"element 0 of tensors does not require grad and does not have a grad_fn"},
		"not scalar": {[]*variable{y}, nil, autograd.ErrNotScalar,
			"grad can be implicitly created only for scalar outputs"},
		"zero for a vector": {[]*variable{y}, []autograd.Value{{}}, autograd.ErrNotScalar,
			"grad can be implicitly created"},
		"too few": {[]*variable{y, y}, []autograd.Value{y.Value()}, autograd.ErrNoGradient,
			"1 gradients for 2 roots"},
	} {
		t.Run(name, func(t *testing.T) {
			options := []autograd.BackwardOption{}
			if c.grads != nil {
				options = append(options, autograd.WithGradients(c.grads...))
			}
			err := autograd.Backward(ctx, c.roots, options...)
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, "autograd: backward: ")
			require.ErrorContains(t, err, c.text)
		})
	}
	err := backward(t, y, autograd.WithGradients(constant(make([]float64, 6), 3, 2).Value()))
	var wrong *autograd.GradientError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, []int{3, 2}, wrong.Got)
	require.Equal(t, []int{2}, wrong.Want)
	require.True(t, x.Grad().IsZero())
}

func TestReleasedGraph(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x := leaf(t, []float64{2, 3}, 2)
	y := do(autograd.Sum(ctx, do(autograd.Exp(ctx, x))))
	require.NoError(t, backward(t, y, autograd.RetainGraph()))
	require.NoError(t, backward(t, y))
	err := backward(t, y)
	require.ErrorIs(t, err, autograd.ErrReleased)
	var failed *autograd.OpError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "ExpBackward0", failed.Op)
}

// TestGraphWithoutTensors checks that a graph whose nodes keep no tensors can be used again.
func TestGraphWithoutTensors(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x, y := leaf(t, []float64{2, 3}, 2), leaf(t, []float64{5, 7}, 2)
	z := do(autograd.Sum(ctx, do(autograd.Neg(ctx, do(autograd.AddScaled(ctx, x, do(autograd.T(ctx, y)), 3))))))
	require.NoError(t, backward(t, z))
	require.NoError(t, backward(t, z))
	requireGrad(t, x, -2, -2)
	requireGrad(t, y, -6, -6)
}

// TestConcurrentPasses runs passes over one graph at once.
func TestConcurrentPasses(t *testing.T) {
	const passes = 8
	ctx, do := t.Context(), must(t)
	x := leaf(t, []float64{0.5}, 1)
	y := x
	for range 50 {
		y = do(autograd.Mul(ctx, do(autograd.Add(ctx, y, x)), x))
	}
	root := do(autograd.Sum(ctx, y))
	require.NoError(t, backward(t, root, autograd.RetainGraph()))
	want := floats(t, x.Grad().Tensor())[0]
	x.ZeroGrad()
	var group sync.WaitGroup
	errs := make([]error, passes)
	for i := range passes {
		group.Go(func() { errs[i] = autograd.Backward(ctx, []*variable{root}, autograd.RetainGraph()) })
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
	require.InEpsilon(t, passes*want, floats(t, x.Grad().Tensor())[0], 1e-12)
}

// TestConcurrentOperators uses one leaf in the operators and passes of several goroutines.
func TestConcurrentOperators(t *testing.T) {
	x := leaf(t, []float64{2, 3}, 2)
	var group sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		group.Go(func() {
			y, err := autograd.Mul(t.Context(), x, x)
			if err == nil {
				y, err = autograd.Sum(t.Context(), y)
			}
			if err == nil {
				err = autograd.Backward(t.Context(), []*variable{y})
			}
			errs[i] = err
		})
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
	requireGrad(t, x, 8*4, 8*6)
}

func TestBackwardEndsWithContext(t *testing.T) {
	x := leaf(t, []float64{2}, 1)
	y := must(t)(autograd.Neg(t.Context(), x))
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the job has ended")
	cancel(cause)
	require.ErrorIs(t, autograd.Backward(ctx, []*variable{y}), cause)
	require.True(t, x.Grad().IsZero())
}

func TestNoGrad(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x := leaf(t, []float64{2, 3}, 2)
	require.True(t, autograd.IsGradEnabled(ctx))
	off := autograd.NoGrad(ctx)
	require.False(t, autograd.IsGradEnabled(off))
	y := do(autograd.Mul(off, x, x))
	require.False(t, y.RequiresGrad())
	require.True(t, y.IsLeaf())
	require.Nil(t, y.Node())
	z := do(autograd.Sum(ctx, do(autograd.Mul(ctx, x, y))))
	require.NoError(t, backward(t, z))
	requireGrad(t, x, 4, 9)
}

// TestLongChain checks that the depth of a graph has no limit.
func TestLongChain(t *testing.T) {
	ctx := t.Context()
	x := leaf(t, []float64{1})
	y := x
	for range 100_000 {
		var err error
		if y, err = autograd.Add(ctx, y, x); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, backward(t, y))
	requireGrad(t, x, 100_001)
}
