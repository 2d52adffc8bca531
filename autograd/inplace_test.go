package autograd_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// changes has the operators that change their first argument in place, by their names in errors.
var changes = map[string]func(_ context.Context, x, y *variable) error{
	"add_": func(ctx context.Context, x, y *variable) error { return autograd.AddInPlace(ctx, x, y, 1) },
	"sub_": func(ctx context.Context, x, y *variable) error { return autograd.SubInPlace(ctx, x, y, 1) },
	"mul_": autograd.MulInPlace,
	"div_": autograd.DivInPlace,
}

// TestInPlaceGraph checks a Variable that depends on another one only after a change in place.
func TestInPlaceGraph(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x, y := constant([]float64{2, 3}, 2), leaf(t, []float64{5, 7}, 2)
	require.NoError(t, autograd.MulInPlace(ctx, x, y))
	require.Equal(t, "MulBackward0", x.Node().Name())
	require.NoError(t, autograd.AddInPlace(ctx, x, y, 10))
	require.Equal(t, "AddBackward0", x.Node().Name())
	require.Equal(t, "MulBackward0", x.Node().Edges()[0].Node.Name())
	require.Equal(t, []float64{60, 91}, floats(t, x.Tensor()))
	require.NoError(t, backward(t, do(autograd.Sum(ctx, x))))
	requireGrad(t, y, 12, 13)
}

// TestModified checks that a pass fails if a tensor that a node has kept was changed.
func TestModified(t *testing.T) {
	ctx, do := t.Context(), must(t)
	one := constant([]float64{1})
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			x := leaf(t, []float64{2, 3}, 2)
			y := do(autograd.Exp(ctx, x)) // keeps its result
			require.NoError(t, change(ctx, y, one))
			err := backward(t, do(autograd.Sum(ctx, y)))
			require.ErrorIs(t, err, autograd.ErrModified)
			require.ErrorContains(t, err, "autograd: ExpBackward0: ")
			require.ErrorContains(t, err, "f64[2] is at version 1; expected version 0 instead")

			y = do(autograd.MulNumber(ctx, x, 2)) // does not
			require.NoError(t, change(ctx, y, one))
			require.NoError(t, backward(t, do(autograd.Sum(ctx, y))))
		})
	}
}

// TestModifiedThroughOthers checks changes of memory that another Variable shares.
func TestModifiedThroughOthers(t *testing.T) {
	ctx, do := t.Context(), must(t)
	for name, of := range map[string]func(x *variable) *variable{
		"view":   func(x *variable) *variable { return do(autograd.Select(ctx, x, 0, 1)) },
		"detach": func(x *variable) *variable { return x.Detach() },
	} {
		t.Run(name, func(t *testing.T) {
			x := leaf(t, []float64{2, 3}, 2)
			y := do(autograd.Mul(ctx, x, x))
			require.NoError(t, autograd.AddInPlace(autograd.NoGrad(ctx), of(x), constant([]float64{1}), 1))
			require.ErrorIs(t, backward(t, do(autograd.Sum(ctx, y))), autograd.ErrModified)
		})
	}
	// The index of a table is checked, too.
	table, index := leaf(t, []float64{2, 3}, 2, 1), integers([]int64{1}, 1)
	rows := do(autograd.Embedding(ctx, table, index, false))
	require.NoError(t, autograd.SubInPlace(ctx, index, integers([]int64{1}, 1), 1))
	require.ErrorIs(t, backward(t, rows), autograd.ErrModified)
}

// TestInPlaceIsRefused checks the Variables that must not be changed in place.
func TestInPlaceIsRefused(t *testing.T) {
	ctx, do := t.Context(), must(t)
	one := constant([]float64{1})
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			x := leaf(t, []float64{2, 3}, 2)
			y := do(autograd.Neg(ctx, x))
			view := do(autograd.Select(ctx, y, 0, 0))
			for text, of := range map[string]*variable{"a leaf Variable that requires grad": x, "a view of a Variable": view,
				"a Variable that has views": y} {
				err := change(ctx, of, one)
				require.ErrorIs(t, err, autograd.ErrInPlace)
				require.ErrorContains(t, err, "autograd: "+name+": "+text+" is being used in an in-place operation")
			}
			require.Equal(t, []float64{2, 3}, floats(t, x.Tensor()))
			require.Equal(t, []float64{-2, -3}, floats(t, y.Tensor()))
			require.NoError(t, change(autograd.NoGrad(ctx), x, one))
			require.True(t, x.IsLeaf())
		})
	}
}

// TestInPlaceOfViewed checks that a tensor which has a view outside of graphs cannot become part of one by a
// change in place: the view would change, and have no gradient.
func TestInPlaceOfViewed(t *testing.T) {
	ctx, do := t.Context(), must(t)
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			x := constant([]float64{2, 3}, 2)
			view := do(autograd.View(ctx, x, 2, 1))
			require.ErrorIs(t, change(ctx, x, leaf(t, []float64{1})), autograd.ErrInPlace)
			require.Equal(t, []float64{2, 3}, floats(t, view.Tensor()))
		})
	}
}

// TestInPlaceFails checks that a change that fails leaves no trace.
func TestInPlaceFails(t *testing.T) {
	ctx, do := t.Context(), must(t)
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			w := leaf(t, []float64{2}, 1)
			x := do(autograd.Exp(ctx, w))
			node := x.Node()
			require.Error(t, change(ctx, x, leaf(t, []float64{1, 2}, 2)))
			x.Tensor().Storage().SetReadOnly(true)
			require.ErrorIs(t, change(ctx, x, leaf(t, []float64{1})), tensor.ErrReadOnly)
			require.Same(t, node, x.Node())
			require.NoError(t, backward(t, x))
		})
	}
	whole := integers([]int64{1, 2}, 2)
	require.ErrorContains(t, autograd.AddInPlace(ctx, whole, leaf(t, []float64{1}, 1), 1), "can't be cast")
	require.True(t, whole.IsLeaf())
}

// TestInPlaceOfItself checks a Variable that is multiplied by itself: its elements from before are gone.
func TestInPlaceOfItself(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x := do(autograd.Neg(ctx, leaf(t, []float64{2, 3}, 2)))
	require.NoError(t, autograd.MulInPlace(ctx, x, x))
	require.Equal(t, []float64{4, 9}, floats(t, x.Tensor()))
	require.ErrorIs(t, backward(t, do(autograd.Sum(ctx, x))), autograd.ErrModified)

	w := leaf(t, []float64{2, 3}, 2)
	x = do(autograd.Neg(ctx, w))
	require.NoError(t, autograd.AddInPlace(ctx, x, x, 2))
	require.NoError(t, backward(t, do(autograd.Sum(ctx, x))))
	requireGrad(t, w, -3, -3)
}
