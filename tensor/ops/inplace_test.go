package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

var everyDType = []tensor.DType{
	tensor.Bool, tensor.U8, tensor.I8, tensor.I16, tensor.I32, tensor.I64,
	tensor.F16, tensor.BF16, tensor.F32, tensor.F64, tensor.C64, tensor.C128,
}

// TestInPlace checks for all layouts that in-place operators leave the results of the others in x.
func TestInPlace(t *testing.T) {
	s := newSource(t)
	for _, op := range elementwises {
		for _, shapes := range [][2][]int{{{3, 4}, {3, 4}}, {{3, 4}, {4}}, {{3, 4}, {3, 1}}, {{2}, {}}, {{0, 2}, {2}}, {{}, {}}} {
			for _, first := range []string{"contiguous", "transposed", "narrowed", "strided"} {
				for _, second := range layouts {
					for _, e := range engines {
						x, y := s.tensor(tensor.F32, first, shapes[0]...), s.tensor(tensor.F32, second, shapes[1]...)
						want, err := op.tensors(e, t, x, y)
						require.NoError(t, err)
						require.NoError(t, op.inPlace(e, t, x, y))
						requireClose(t, tensor.F32, shapes[0], floats(t, want), x)
					}
				}
			}
		}
	}
}

// TestInPlaceDTypes checks for all pairs of dtypes that in-place addition leaves the sum of Add in
// x, cast to its dtype, and fails where that would lose more than precision.
func TestInPlaceDTypes(t *testing.T) {
	e, ctx := &ops.Engine{}, t.Context()
	for _, d := range everyDType {
		for _, other := range everyDType {
			x, err := e.Full(ctx, d, ops.Int(1), 3)
			require.NoError(t, err)
			y, err := e.Full(ctx, other, ops.Int(1), 3)
			require.NoError(t, err)
			want, err := e.Add(ctx, x, y, ops.Int(1))
			require.NoError(t, err)
			err = e.AddInPlace(ctx, x, y, ops.Int(1))
			if category(want.DType()) > category(d) {
				var invalid *ops.ValueError
				require.ErrorAs(t, err, &invalid, "%v += %v", d, other)
				require.Contains(t, invalid.Reason, "can't be cast to the desired output type")
				continue
			}
			require.NoError(t, err, "%v += %v", d, other)
			want, err = e.Cast(ctx, want, d)
			require.NoError(t, err)
			same, err := tensor.Equal(want, x)
			require.NoError(t, err)
			require.True(t, same, "%v += %v", d, other)
		}
	}
}

// category orders dtypes by category: bool, integer, floating point, complex.
func category(d tensor.DType) int {
	switch {
	case d == tensor.Bool:
		return 0
	case d <= tensor.I64:
		return 1
	case d <= tensor.F64:
		return 2
	}
	return 3
}

// TestInPlaceNumbers checks the in-place operators with a number.
func TestInPlaceNumbers(t *testing.T) {
	e, ctx := &ops.Engine{}, t.Context()
	x := tensorOf(t, tensor.F32, func(i int) float64 { return float64(i) }, 3)
	require.NoError(t, e.AddNumberInPlace(ctx, x, ops.Int(2), ops.Float(0.5)))
	requireData(t, []float32{1, 2, 3}, x)
	require.NoError(t, e.MulNumberInPlace(ctx, x, ops.Float(-2)))
	requireData(t, []float32{-2, -4, -6}, x)
	require.NoError(t, e.DivNumberInPlace(ctx, x, ops.Int(4)))
	requireData(t, []float32{-0.5, -1, -1.5}, x)
	require.NoError(t, e.FillInPlace(ctx, x, ops.Bool(true)))
	requireData(t, []float32{1, 1, 1}, x)
	require.NoError(t, e.ZeroInPlace(ctx, x))
	requireData(t, []float32{0, 0, 0}, x)

	n := tensorOf(t, tensor.I64, func(i int) float64 { return float64(i) }, 2)
	requireValueError(t, e.DivNumberInPlace(ctx, n, ops.Int(2)), "result type Float can't be cast to the desired output type Long")
	requireValueError(t, e.AddNumberInPlace(ctx, n, ops.Float(1), ops.Int(1)), "result type Float can't be cast to the desired output type Long")
	require.NoError(t, e.FillInPlace(ctx, n, ops.Float(1.5)))
	requireData(t, []int64{1, 1}, n)
}

// TestInPlaceSharedMemory checks that an operand that shares memory with x counts as it was before.
func TestInPlaceSharedMemory(t *testing.T) {
	for _, e := range engines {
		x := tensorOf(t, tensor.F32, func(i int) float64 { return float64(i + 1) }, 5)
		first, err := x.Narrow(0, 0, 4)
		require.NoError(t, err)
		last, err := x.Narrow(0, 1, 4)
		require.NoError(t, err)
		require.NoError(t, e.AddInPlace(t.Context(), last, first, ops.Int(1)))
		requireData(t, []float32{1, 3, 5, 7, 9}, x)

		m := tensorOf(t, tensor.F32, func(i int) float64 { return float64(i) }, 2, 2)
		require.NoError(t, e.AddInPlace(t.Context(), m, transpose(t, m, 0, 1), ops.Int(1)))
		requireData(t, []float32{0, 3, 3, 6}, m)
		require.NoError(t, e.MulInPlace(t.Context(), m, m))
		requireData(t, []float32{0, 9, 9, 36}, m)
		one, err := m.Narrow(0, 1, 1)
		require.NoError(t, err)
		require.NoError(t, e.SubInPlace(t.Context(), m, one, ops.Int(1)))
		requireData(t, []float32{-9, -27, 0, 0}, m)
	}
}

// TestInPlaceErrors checks that an x that cannot be written is an error of each in-place operator,
// and remains as it was.
func TestInPlaceErrors(t *testing.T) {
	e, ctx := &ops.Engine{}, t.Context()
	y := tensorOf(t, tensor.F32, func(i int) float64 { return 5 }, 2)
	at := tensorOf(t, tensor.I64, func(int) float64 { return 0 }, 1, 2)
	sparse, err := tensor.NewSparse(at, y, 2)
	require.NoError(t, err)
	readOnly := arrange(t, y, "read-only")
	expanded := expand(t, tensor.Scalar(float32(3)), 2)
	huge := expand(t, tensor.Scalar(float32(3)), 1<<30, 1<<30)
	for name, f := range map[string]func(x *tensor.Tensor) error{
		"add":    func(x *tensor.Tensor) error { return e.AddInPlace(ctx, x, y, ops.Int(1)) },
		"number": func(x *tensor.Tensor) error { return e.AddNumberInPlace(ctx, x, ops.Int(1), ops.Int(1)) },
		"sub":    func(x *tensor.Tensor) error { return e.SubInPlace(ctx, x, y, ops.Int(1)) },
		"mul":    func(x *tensor.Tensor) error { return e.MulInPlace(ctx, x, y) },
		"div":    func(x *tensor.Tensor) error { return e.DivInPlace(ctx, x, y) },
		"scale":  func(x *tensor.Tensor) error { return e.MulNumberInPlace(ctx, x, ops.Int(2)) },
		"fill":   func(x *tensor.Tensor) error { return e.FillInPlace(ctx, x, ops.Int(2)) },
		"zero":   func(x *tensor.Tensor) error { return e.ZeroInPlace(ctx, x) },
		"copy":   func(x *tensor.Tensor) error { return e.CopyInPlace(ctx, x, y) },
		"sparse": func(x *tensor.Tensor) error { return e.AddSparseInPlace(ctx, x, sparse, ops.Int(1)) },
	} {
		require.ErrorIs(t, f(readOnly), tensor.ErrReadOnly, name)
		require.ErrorIs(t, f(expanded), tensor.ErrOverlap, name)
		require.Error(t, f(huge), name)
	}
	requireData(t, []float32{5, 5}, readOnly)
	requireClose(t, tensor.F32, []int{2}, []float64{3, 3}, expanded)

	x := tensorOf(t, tensor.F32, func(i int) float64 { return 1 }, 1)
	requireValueError(t, e.AddInPlace(ctx, x, y, ops.Int(1)), "output with shape [1] doesn't match the broadcast shape [2]")
	var size *ops.SizeError
	require.ErrorAs(t, e.AddInPlace(ctx, tensorOf(t, tensor.F32, func(int) float64 { return 1 }, 3), y, ops.Int(1)), &size)
	requireData(t, []float32{1}, x)
}

// TestInPlaceUnaligned checks an x whose memory does not begin at a multiple of the element's size.
func TestInPlaceUnaligned(t *testing.T) {
	e := &ops.Engine{}
	x, err := tensor.FromBuffer(device.Bytes(make([]byte, 9)[1:]), tensor.F32, 2)
	require.NoError(t, err)
	require.NoError(t, e.AddNumberInPlace(t.Context(), x, ops.Int(4), ops.Int(1)))
	require.NoError(t, e.MulInPlace(t.Context(), x, x))
	requireClose(t, tensor.F32, []int{2}, []float64{16, 16}, x)
}

func TestCopyInPlace(t *testing.T) {
	e, ctx := &ops.Engine{}, t.Context()
	x := tensorOf(t, tensor.F32, func(int) float64 { return 0 }, 2, 3)
	require.NoError(t, e.CopyInPlace(ctx, x, tensorOf(t, tensor.I64, func(i int) float64 { return float64(i) }, 3)))
	requireData(t, []float32{0, 1, 2, 0, 1, 2}, x)
	requireValueError(t, e.CopyInPlace(ctx, x, expand(t, tensor.Scalar(1.0), 4, 2, 3)), "output with shape [2, 3] doesn't match the broadcast shape [4, 2, 3]")
}
