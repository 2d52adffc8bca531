package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
)

// scaledBy returns a hook that multiplies gradients by factor, and adds name to calls.
func scaledBy(calls *[]string, name string, factor float64) autograd.Hook {
	return func(ctx context.Context, grad autograd.Value) (autograd.Value, error) {
		*calls = append(*calls, name)
		x, err := autograd.MulNumber(ctx, autograd.New(grad), factor)
		if err != nil {
			return grad, err
		}
		return x.Value(), nil
	}
}

// recorded returns a post-hook that adds name and the first gradients to calls.
func recorded(t *testing.T, calls *[]string, name string) autograd.PostHook {
	first := func(grads []autograd.Value) any {
		if len(grads) == 0 {
			return "none"
		}
		dense, err := grads[0].ToDense()
		require.NoError(t, err)
		return floats(t, dense)
	}
	return func(_ context.Context, arguments, results []autograd.Value) error {
		*calls = append(*calls, fmt.Sprint(name, " ", first(arguments), " ", first(results)))
		return nil
	}
}

func TestHooks(t *testing.T) {
	ctx, do := t.Context(), must(t)
	var calls []string
	x := leaf(t, []float64{2, 3}, 2)
	y := do(autograd.MulNumber(ctx, x, 5))
	z := do(autograd.Sum(ctx, y))
	require.NoError(t, y.AddHook(scaledBy(&calls, "y first", 2)))
	require.NoError(t, y.AddHook(scaledBy(&calls, "y second", 3)))
	require.NoError(t, x.AddHook(scaledBy(&calls, "x", 7)))
	y.Node().AddPostHook(recorded(t, &calls, "y post first"))
	y.Node().AddPostHook(recorded(t, &calls, "y post second"))
	x.Edge().Node.AddPostHook(recorded(t, &calls, "x post"))
	y.Node().AddPostHook(nil)
	for range 2 {
		calls = nil
		require.NoError(t, backward(t, z))
		require.Equal(t, []string{"y first", "y second", "y post first [30 30] [6 6]", "y post second [30 30] [6 6]",
			"x", "x post none [210 210]"}, calls)
	}
	requireGrad(t, x, 420, 420)
}

// TestHooksOfResults checks that the hooks of one result see its gradient and no other.
func TestHooksOfResults(t *testing.T) {
	ctx, do := t.Context(), must(t)
	var calls []string
	x := leaf(t, []float64{2, 3, 5}, 3)
	parts, err := autograd.Split(ctx, x, 2, 0)
	require.NoError(t, err)
	require.NoError(t, parts[0].AddHook(scaledBy(&calls, "first", 2)))
	require.NoError(t, parts[1].AddHook(scaledBy(&calls, "second", 10)))
	require.NoError(t, backward(t, do(autograd.Sum(ctx, parts[1]))))
	require.Equal(t, []string{"second"}, calls)
	requireGrad(t, x, 0, 0, 10)
}

func TestHookErrors(t *testing.T) {
	ctx, do := t.Context(), must(t)
	require.ErrorIs(t, constant([]float64{1}).AddHook(scaledBy(nil, "", 1)), autograd.ErrNotRequired)
	require.ErrorIs(t, leaf(t, []float64{1}).AddHook(nil), autograd.ErrNoFunction)

	cause := errors.New("the hook has failed")
	for name, c := range map[string]struct {
		hook autograd.Hook
		want func(t *testing.T, err error)
	}{
		"error": {
			func(_ context.Context, grad autograd.Value) (autograd.Value, error) { return grad, cause },
			func(t *testing.T, err error) { require.ErrorIs(t, err, cause) },
		},
		"other shape": {
			func(context.Context, autograd.Value) (autograd.Value, error) {
				return constant([]float64{1, 2, 3}, 3).Value(), nil
			},
			func(t *testing.T, err error) {
				var wrong *autograd.GradientError
				require.ErrorAs(t, err, &wrong)
				require.ErrorContains(t, err, "has changed the size of the value")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := leaf(t, []float64{2, 3}, 2)
			y := do(autograd.Neg(ctx, x))
			require.NoError(t, y.AddHook(c.hook))
			err := backward(t, do(autograd.Sum(ctx, y)))
			c.want(t, err)
			require.ErrorContains(t, err, "autograd: NegBackward0: ")
			require.True(t, x.Grad().IsZero())
		})
	}
	x := leaf(t, []float64{2, 3}, 2)
	y := do(autograd.Sum(ctx, x))
	y.Node().AddPostHook(func(context.Context, []autograd.Value, []autograd.Value) error { return cause })
	require.ErrorIs(t, backward(t, y), cause)
	require.True(t, x.Grad().IsZero())
}

// TestHookWithoutGradient checks a hook that returns no gradient.
func TestHookWithoutGradient(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x := leaf(t, []float64{2, 3}, 2)
	y := do(autograd.Exp(ctx, x))
	require.NoError(t, y.AddHook(func(context.Context, autograd.Value) (autograd.Value, error) {
		return autograd.Value{}, nil
	}))
	require.NoError(t, backward(t, do(autograd.Sum(ctx, y))))
	require.True(t, x.Grad().IsZero())
}
