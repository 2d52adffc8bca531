package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// TestStackSparse compares stacks of sparse tensors with those of the dense ones, at each position, and
// selects their parts again.
func TestStackSparse(t *testing.T) {
	s := newSource(t)
	ctx := t.Context()
	all := s.sparseShapes(tensor.F64)
	for _, xs := range [][]*tensor.Sparse{{all[0], all[1], all[0]}, {all[2], all[3]}, {all[1]}} {
		for _, e := range engines {
			sparse := xs[0].Indices().Shape()[0]
			for dim := range sparse + 1 {
				for _, position := range []int{dim, dim - 3} { // the stack has three dimensions
					got, err := e.StackSparse(ctx, xs, position)
					require.NoError(t, err)
					var parts []*tensor.Tensor
					for _, x := range xs {
						parts = append(parts, dense(t, x))
					}
					want, err := e.Stack(ctx, parts, position)
					require.NoError(t, err)
					requireClose(t, tensor.F64, want.Shape(), floats(t, want), dense(t, got))
					for i, part := range parts {
						for _, index := range []int{i, i - len(xs)} {
							back, err := e.SelectSparse(ctx, got, position, index)
							require.NoError(t, err)
							requireClose(t, tensor.F64, part.Shape(), floats(t, part), dense(t, back))
							require.Equal(t, xs[i].Len(), back.Len(), "a part lists only its own positions")
						}
					}
				}
			}
		}
	}
}

// TestSelectSparse selects each part of a sparse tensor along each sparse dimension.
func TestSelectSparse(t *testing.T) {
	s := newSource(t)
	for _, x := range s.sparseShapes(tensor.F32) {
		for _, e := range engines {
			for dim := range x.Indices().Shape()[0] {
				for i := range x.Shape()[dim] {
					got, err := e.SelectSparse(t.Context(), x, dim, i)
					require.NoError(t, err)
					want, err := e.Select(t.Context(), dense(t, x), dim, i)
					require.NoError(t, err)
					requireClose(t, tensor.F32, want.Shape(), floats(t, want), dense(t, got))
				}
			}
		}
	}
}

// TestStackSparsePromotes checks the dtype of a stack of different ones, and tensors without positions.
func TestStackSparsePromotes(t *testing.T) {
	s := newSource(t)
	e, ctx := &ops.Engine{}, t.Context()
	none, err := tensor.NewSparse(tensorOf(t, tensor.I64, nil, 1, 0), tensorOf(t, tensor.F32, nil, 0), 3)
	require.NoError(t, err)
	got, err := e.StackSparse(ctx, []*tensor.Sparse{none, s.sparseOf(tensor.F64, [][]int{{2}}, 3)}, 0)
	require.NoError(t, err)
	require.Equal(t, tensor.F64, got.DType())
	require.Equal(t, []int{2, 3}, got.Shape())
	requireData(t, []int64{1, 2}, got.Indices())
	empty, err := e.SelectSparse(ctx, got, 0, 0)
	require.NoError(t, err)
	require.Zero(t, empty.Len())
	require.Equal(t, []int{3}, empty.Shape())
}

// TestStackSparseErrors checks the errors for lists and positions that do not fit.
func TestStackSparseErrors(t *testing.T) {
	s := newSource(t)
	e, ctx := &ops.Engine{}, t.Context()
	all := s.sparseShapes(tensor.F32)
	var invalid *ops.ValueError
	for text, f := range map[string]func() error{
		"non-empty TensorList": func() error { _, err := e.StackSparse(ctx, nil, 0); return err },
		"to match": func() error {
			_, err := e.StackSparse(ctx, []*tensor.Sparse{all[0], s.sparseOf(tensor.F32, [][]int{{0, 0}}, 1, 1)}, 0)
			return err
		},
		"same number of sparse dimensions": func() error {
			_, err := e.StackSparse(ctx, []*tensor.Sparse{all[0], all[2]}, 0)
			return err
		},
		"Dimension out of range": func() error { _, err := e.StackSparse(ctx, all[:1], 3); return err },
		"among the dense dimensions": func() error {
			_, err := e.StackSparse(ctx, all[2:3], 2)
			return err
		},
		"is not sparse": func() error { _, err := e.SelectSparse(ctx, all[2], 1, 0); return err },
		"Dimension out of range (expected to be in": func() error { _, err := e.SelectSparse(ctx, all[0], -3, 0); return err },
	} {
		err := f()
		require.ErrorAs(t, err, &invalid)
		require.ErrorContains(t, err, text)
	}
	var outside *tensor.IndexError
	_, err := e.SelectSparse(ctx, all[0], 0, 3)
	require.ErrorAs(t, err, &outside)
	_, err = e.SelectSparse(ctx, all[0], 0, -4)
	require.ErrorAs(t, err, &outside)
	var limit *ops.LimitError
	_, err = (&ops.Engine{MaxBytes: 16}).StackSparse(ctx, all[:1], 0)
	require.ErrorAs(t, err, &limit)
	_, err = (&ops.Engine{MaxBytes: 1}).SelectSparse(ctx, all[0], 0, 2)
	require.ErrorAs(t, err, &limit)
}
