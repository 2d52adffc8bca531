package autograd_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
)

type (
	forwardFunc  = func(ctx context.Context) ([]autograd.Value, error)
	backwardFunc = func(ctx context.Context, grads []autograd.Value) ([]autograd.Value, error)
)

// returning returns a forward function with the given results.
func returning(results ...autograd.Value) forwardFunc {
	return func(context.Context) ([]autograd.Value, error) { return results, nil }
}

// passing returns a backward function that returns the gradients of the results n times each.
func passing(n int) backwardFunc {
	return func(_ context.Context, grads []autograd.Value) ([]autograd.Value, error) {
		var all []autograd.Value
		for _, g := range grads {
			for range n {
				all = append(all, g)
			}
		}
		return all, nil
	}
}

func TestApply(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x, y := leaf(t, []float64{2, 3}, 2), leaf(t, []float64{5, 7}, 2)
	var recorded, recordedBackward bool
	results, err := autograd.Apply(ctx, "MyProduct", []*variable{x, y},
		func(ctx context.Context) ([]autograd.Value, error) {
			z, err := autograd.Mul(ctx, x, y)
			recorded = recorded || z.RequiresGrad()
			return []autograd.Value{z.Value()}, err
		},
		func(ctx context.Context, grads []autograd.Value) ([]autograd.Value, error) {
			g := leaf(t, floats(t, grads[0].Tensor()), 2)
			gx, err := autograd.Mul(ctx, g, y)
			if err != nil {
				return nil, err
			}
			gy, err := autograd.Mul(ctx, g, x)
			recordedBackward = recordedBackward || gx.RequiresGrad() || gy.RequiresGrad()
			return []autograd.Value{gx.Value(), gy.Value()}, err
		})
	require.NoError(t, err)
	require.Len(t, results, 1)
	require.Equal(t, "MyProduct", results[0].Node().Name())
	require.Equal(t, []autograd.Edge{x.Edge(), y.Edge()}, results[0].Node().Edges())
	root := do(autograd.Sum(ctx, results[0]))
	require.NoError(t, backward(t, root))
	requireGrad(t, x, 5, 7)
	requireGrad(t, y, 2, 3)
	require.False(t, recorded)
	require.False(t, recordedBackward)
	require.ErrorIs(t, backward(t, root), autograd.ErrReleased)
}

// TestApplyResults checks gradients of results that are not used, and of results without gradients.
func TestApplyResults(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x := leaf(t, []float64{2, 3}, 2)
	var grads []autograd.Value
	results, err := autograd.Apply(ctx, "Three", []*variable{x},
		returning(integers([]int64{1}, 1).Value(), constant([]float64{1, 2}, 2).Value(),
			constant([]float64{3, 4, 5}, 3).Value()),
		func(_ context.Context, all []autograd.Value) ([]autograd.Value, error) {
			grads = all
			return all[1:2], nil
		})
	require.NoError(t, err)
	require.False(t, results[0].RequiresGrad())
	require.Equal(t, 2, results[1].Node().Outputs())
	require.NoError(t, backward(t, do(autograd.Sum(ctx, results[1]))))
	requireGrad(t, x, 1, 1)
	require.Len(t, grads, 3)
	require.True(t, grads[0].IsZero())
	require.Equal(t, []float64{0, 0, 0}, floats(t, grads[2].Tensor()))
}

// TestApplyIdentity checks results that share the memory of an argument, and of each other.
func TestApplyIdentity(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x := leaf(t, []float64{2, 3}, 2)
	y := do(autograd.Neg(ctx, x))
	results, err := autograd.Apply(ctx, "Identity", []*variable{y}, returning(y.Value(), y.Value()),
		func(_ context.Context, grads []autograd.Value) ([]autograd.Value, error) { return grads[1:], nil })
	require.NoError(t, err)
	require.Same(t, y.Tensor(), results[0].Tensor())
	for _, z := range []*variable{y, results[0], results[1]} {
		require.ErrorIs(t, autograd.AddInPlace(ctx, z, constant([]float64{1}), 1), autograd.ErrInPlace)
	}
	square := do(autograd.Sum(ctx, do(autograd.Mul(ctx, results[0], results[0]))))
	require.NoError(t, backward(t, do(autograd.Sum(ctx, results[1])), autograd.RetainGraph()))
	requireGrad(t, x, -1, -1)
	require.NoError(t, autograd.AddInPlace(autograd.NoGrad(ctx), results[1], constant([]float64{1}), 1))
	require.Equal(t, []float64{-1, -2}, floats(t, y.Tensor()))
	require.ErrorIs(t, backward(t, square), autograd.ErrModified)
}

func TestApplyWithoutGradients(t *testing.T) {
	x := constant([]float64{2, 3}, 2)
	results, err := autograd.Apply(t.Context(), "Identity", []*variable{x}, returning(x.Value()), passing(1))
	require.NoError(t, err)
	require.False(t, results[0].RequiresGrad())

	x = leaf(t, []float64{2, 3}, 2)
	results, err = autograd.Apply(t.Context(), "Constant", []*variable{x}, returning(constant([]float64{1}).Value()),
		func(context.Context, []autograd.Value) ([]autograd.Value, error) { return []autograd.Value{{}}, nil })
	require.NoError(t, err)
	require.NoError(t, backward(t, results[0]))
	require.True(t, x.Grad().IsZero())
}

func TestApplyErrors(t *testing.T) {
	ctx, cause := t.Context(), errors.New("the function has failed")
	x := leaf(t, []float64{2, 3}, 2)
	failing := func(context.Context) ([]autograd.Value, error) { return nil, cause }
	for name, c := range map[string]struct {
		args     []*variable
		forward  forwardFunc
		backward backwardFunc
		want     error
	}{
		"no forward":  {[]*variable{x}, nil, passing(1), autograd.ErrNoFunction},
		"no backward": {[]*variable{x}, failing, nil, autograd.ErrNoFunction},
		"nil":         {[]*variable{nil}, failing, passing(1), autograd.ErrNoTensor},
		"no result":   {[]*variable{x}, returning(autograd.Value{}), passing(1), autograd.ErrNoTensor},
		"failure":     {[]*variable{x}, failing, passing(1), cause},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := autograd.Apply(ctx, "MyFunction", c.args, c.forward, c.backward)
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, "autograd: MyFunction: ")
		})
	}
	var wrong *autograd.GradientError
	for name, c := range map[string]struct {
		backward backwardFunc
		want     func(err error) bool
		text     string
	}{
		"failure": {
			func(context.Context, []autograd.Value) ([]autograd.Value, error) { return nil, cause },
			func(err error) bool { return errors.Is(err, cause) }, "the function has failed",
		},
		"too many": {
			passing(2), func(err error) bool { return errors.Is(err, autograd.ErrNoGradient) },
			"returned an incorrect number of gradients (expected 1, got 2)",
		},
		"shape": {
			func(context.Context, []autograd.Value) ([]autograd.Value, error) {
				return []autograd.Value{constant(make([]float64, 25), 5, 5).Value()}, nil
			},
			func(err error) bool { return errors.As(err, &wrong) },
			"an invalid gradient at index 0: got [5 5] but expected shape compatible with [2]",
		},
	} {
		t.Run("backward "+name, func(t *testing.T) {
			forward := returning(constant([]float64{1}).Value())
			results, err := autograd.Apply(ctx, "MyFunction", []*variable{x}, forward, c.backward)
			require.NoError(t, err)
			err = backward(t, results[0])
			require.True(t, c.want(err), "%v", err)
			require.ErrorContains(t, err, "autograd: MyFunction: ")
			require.ErrorContains(t, err, c.text)
			require.True(t, x.Grad().IsZero())
		})
	}
}
