package ops_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// reducedBy returns the sums of x over dims, and the shape of the result with size 1 in these.
func reducedBy(t testing.TB, x *tensor.Tensor, dims []int) (sums []float64, kept []int) {
	t.Helper()
	kept = slices.Clone(x.Shape())
	for _, dim := range dims {
		kept[dim] = 1
	}
	n, err := tensor.NumElements(kept)
	require.NoError(t, err)
	sums = make([]float64, n)
	for i, v := range floats(t, x) {
		to, step := 0, 1
		for dim := x.Rank() - 1; dim >= 0; dim-- {
			index := i % x.Shape()[dim]
			i /= x.Shape()[dim]
			if kept[dim] != 1 {
				to += index * step
			}
			step *= kept[dim]
		}
		sums[to] += v
	}
	return sums, kept
}

// without returns shape without the dimensions dims.
func without(shape, dims []int) []int {
	out := []int{}
	for i, size := range shape {
		if !slices.Contains(dims, i) {
			out = append(out, size)
		}
	}
	return out
}

// TestSum compares sums and means with a loop over the elements, for all layouts and sets of
// dimensions.
func TestSum(t *testing.T) {
	s := newSource(t)
	for _, shape := range [][]int{{2, 3, 4}, {5, 1, 7}, {3, 0, 2}, {130}, {}, {2, 2, 2, 2, 2, 2, 2, 2, 3}} {
		for set := range 1 << min(len(shape), 3) {
			var dims []int
			for dim := range len(shape) {
				if set>>dim&1 == 1 {
					dims = append(dims, dim)
				}
			}
			for _, layout := range layouts {
				for _, d := range []tensor.DType{tensor.F32, tensor.F64} {
					checkSum(t, s.tensor(d, layout, shape...), dims)
				}
			}
		}
	}
}

// checkSum compares the sums and means of x over dims, where none stands for all.
func checkSum(t *testing.T, x *tensor.Tensor, dims []int) {
	t.Helper()
	reduced := dims
	if len(dims) == 0 {
		reduced = nil
		for i := range x.Rank() {
			reduced = append(reduced, i)
		}
	}
	want, kept := reducedBy(t, x, reduced)
	means := slices.Clone(want)
	for i := range means {
		means[i] /= float64(x.Len()) / float64(len(want))
	}
	for _, e := range engines {
		got, err := e.Sum(t.Context(), x, dims, true, 0)
		require.NoError(t, err)
		requireClose(t, x.DType(), kept, want, got)
		got, err = e.Sum(t.Context(), x, dims, false, 0)
		require.NoError(t, err)
		requireClose(t, x.DType(), without(x.Shape(), reduced), want, got)
		got, err = e.Mean(t.Context(), x, dims, true, 0)
		require.NoError(t, err)
		if x.Len() > 0 {
			requireClose(t, x.DType(), kept, means, got)
			continue
		}
		for _, v := range floats(t, got) {
			require.True(t, math.IsNaN(v))
		}
	}
}

// TestSumDTypes checks the dtypes of sums and the conversion before the sum.
func TestSumDTypes(t *testing.T) {
	e, ctx := &ops.Engine{}, t.Context()
	x, err := e.Full(ctx, tensor.I8, ops.Int(100), 3)
	require.NoError(t, err)
	got, err := e.Sum(ctx, x, nil, false, 0)
	require.NoError(t, err)
	requireData(t, []int64{300}, got)
	got, err = e.Sum(ctx, x, nil, false, tensor.F32)
	require.NoError(t, err)
	requireData(t, []float32{300}, got)
	got, err = e.Sum(ctx, x, nil, false, tensor.I8)
	require.NoError(t, err)
	requireData(t, []int8{300 - 256}, got)
	_, err = e.Mean(ctx, x, nil, false, 0)
	requireValueError(t, err, "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: Char")
	_, err = e.Sum(ctx, x, []int{0, -1}, false, 0)
	requireValueError(t, err, "dim 0 appears multiple times in the list of dims")
	_, err = e.Sum(ctx, x, nil, false, 99)
	var dtype *tensor.DTypeError
	require.ErrorAs(t, err, &dtype)
	_, err = e.Mean(ctx, x, nil, false, 99)
	require.Error(t, err)
}

// TestSumTo checks that SumTo returns to a tensor what broadcasting it has repeated.
func TestSumTo(t *testing.T) {
	s := newSource(t)
	for _, c := range []struct {
		shape, to, dims []int
	}{
		{[]int{2, 3}, []int{3}, []int{0}},
		{[]int{2, 3}, []int{1, 3}, []int{0}},
		{[]int{2, 3}, []int{2, 1}, []int{1}},
		{[]int{2, 3}, []int{1}, []int{0, 1}},
		{[]int{2, 3}, []int{}, []int{0, 1}},
		{[]int{4, 2, 1, 3}, []int{2, 1, 1}, []int{0, 3}},
		{[]int{0, 3}, []int{1, 3}, []int{0}},
		{[]int{0, 3}, []int{3}, []int{0}},
	} {
		for _, layout := range layouts {
			x := s.tensor(tensor.F32, layout, c.shape...)
			want, _ := reducedBy(t, x, c.dims)
			for _, e := range engines {
				got, err := e.SumTo(t.Context(), x, c.to...)
				require.NoError(t, err)
				requireClose(t, tensor.F32, c.to, want, got)
			}
		}
	}
	e, ctx := &ops.Engine{}, t.Context()
	x := s.tensor(tensor.F64, "contiguous", 2, 3)
	same, err := e.SumTo(ctx, x, 2, 3)
	require.NoError(t, err)
	require.Same(t, x, same)
	n := tensorOf(t, tensor.I64, func(i int) float64 { return 1 << 53 }, 2)
	got, err := e.SumTo(ctx, n)
	require.NoError(t, err)
	requireData(t, []int64{1 << 54}, got)
}

func TestSumToErrors(t *testing.T) {
	e, ctx := &ops.Engine{}, t.Context()
	x := tensorOf(t, tensor.F32, func(int) float64 { return 1 }, 2, 3)
	_, err := e.SumTo(ctx, x, 2)
	var size *ops.SizeError
	require.ErrorAs(t, err, &size)
	require.Equal(t, ops.SizeError{A: 3, B: 2, Dim: 1}, *size)
	_, err = e.SumTo(ctx, x, 1, 2, 3)
	requireValueError(t, err, "the shape [1, 2, 3] has more dimensions than [2, 3] and cannot be broadcast to it")
	for _, shape := range [][]int{{-1}, {1 << 62, 1 << 62}, {0}} {
		_, err = e.SumTo(ctx, x, shape...)
		require.Error(t, err)
	}
}

// TestExtremes compares maxima and minima along a dimension, and their positions, with a loop.
func TestExtremes(t *testing.T) {
	s := newSource(t)
	for _, layout := range layouts {
		x := s.tensor(tensor.F32, layout, 3, 5)
		v := floats(t, x)
		for _, e := range engines {
			values, indices, err := e.MaxDim(t.Context(), x, -1, true)
			require.NoError(t, err)
			low, _, err := e.MinDim(t.Context(), x, 1, false)
			require.NoError(t, err)
			var largest, smallest, places []float64
			for row := range 3 {
				part := v[row*5:][:5]
				largest, smallest = append(largest, slices.Max(part)), append(smallest, slices.Min(part))
				places = append(places, float64(slices.Index(part, slices.Max(part))))
			}
			requireClose(t, tensor.F32, []int{3, 1}, largest, values)
			requireClose(t, tensor.F32, []int{3}, smallest, low)
			requireClose(t, tensor.I64, []int{3, 1}, places, indices)
			all, err := e.ArgMax(t.Context(), x, false)
			require.NoError(t, err)
			requireClose(t, tensor.I64, []int{}, []float64{float64(slices.Index(v, slices.Max(v)))}, all)
		}
	}
	_, err := (&ops.Engine{}).Max(t.Context(), tensorOf(t, tensor.F32, nil, 0))
	require.ErrorContains(t, err, "to have non-zero size")
}

// TestSoftmax checks that probabilities along a dimension have the sum 1 and the ratios of the
// exponentials, also for large numbers.
func TestSoftmax(t *testing.T) {
	s := newSource(t)
	for _, layout := range layouts {
		for dim := range 3 {
			x := s.tensor(tensor.F64, layout, 2, 3, 4)
			for _, e := range engines {
				p, err := e.Softmax(t.Context(), x, dim)
				require.NoError(t, err)
				require.True(t, p.IsContiguous())
				sums, kept := reducedBy(t, p, []int{dim})
				requireClose(t, tensor.F64, kept, slices.Repeat([]float64{1}, len(sums)), tensorOf(t, tensor.F64, func(i int) float64 { return sums[i] }, kept...))
				logs, err := e.LogSoftmax(t.Context(), x, dim-3)
				require.NoError(t, err)
				back, err := e.Exp(t.Context(), logs)
				require.NoError(t, err)
				requireClose(t, tensor.F64, []int{2, 3, 4}, floats(t, p), back)
				shifted, err := e.AddNumber(t.Context(), x, ops.Float(1e4), ops.Int(1))
				require.NoError(t, err)
				again, err := e.Softmax(t.Context(), shifted, dim)
				require.NoError(t, err)
				near, err := e.AllClose(t.Context(), p, again, 1e-9, 1e-9, false)
				require.NoError(t, err)
				require.True(t, near)
			}
		}
	}
}

// TestHostileSizes checks that operators with small arguments that describe large results or loops
// fail with a *LimitError, or need no memory.
func TestHostileSizes(t *testing.T) {
	e, ctx := &ops.Engine{MaxBytes: 1 << 10}, t.Context()
	huge := expand(t, tensor.Scalar(float32(1)), 1<<20, 1<<20)
	none, err := tensor.Zeros(tensor.F32, 1<<40, 0)
	require.NoError(t, err)
	for name, f := range map[string]func() error{
		"add":    func() error { _, err := e.Add(ctx, huge, huge, ops.Int(1)); return err },
		"number": func() error { _, err := e.MulNumber(ctx, huge, ops.Int(1)); return err },
		"sum":    func() error { _, err := e.Sum(ctx, huge, nil, false, 0); return err },
		"sums":   func() error { _, err := e.Sum(ctx, none, []int{1}, false, 0); return err },
		"sum to": func() error { _, err := e.SumTo(ctx, huge, 1, 1); return err },
		"zeros":  func() error { _, err := e.SumTo(ctx, none, 1<<40, 1); return err },
		"eye":    func() error { _, err := e.Eye(ctx, tensor.F32, 1<<30, 1<<30); return err },
		"ones":   func() error { _, err := e.Ones(ctx, tensor.F32, 1<<50); return err },
		"expand": func() error { _, err := e.Expand(ctx, huge, 4, -1, -1); return err },
		"arange": func() error {
			_, err := e.Arange(ctx, 0, ops.Int(0), ops.Int(math.MaxInt64), ops.Int(1))
			return err
		},
		"floats": func() error {
			_, err := e.Arange(ctx, tensor.F32, ops.Float(0), ops.Float(1e300), ops.Int(1))
			return err
		},
	} {
		var limit *ops.LimitError
		require.ErrorAs(t, f(), &limit, name)
		require.Greater(t, limit.Bytes, limit.Limit, name)
	}
	got, err := e.Sum(ctx, none, nil, false, 0)
	require.NoError(t, err)
	requireData(t, []float32{0}, got)
	unlimited := &ops.Engine{}
	_, err = unlimited.Arange(ctx, 0, ops.Float(0), ops.Float(1e300), ops.Int(1))
	require.Error(t, err)
	_, err = unlimited.Ones(ctx, tensor.F64, math.MaxInt)
	require.Error(t, err)
}

// TestUnaligned checks operators on memory that does not begin at a multiple of the element's size,
// with and without gaps between the elements.
func TestUnaligned(t *testing.T) {
	x, err := tensor.FromBuffer(device.Bytes(make([]byte, 49)[1:]), tensor.F64, 2, 3)
	require.NoError(t, err)
	require.NoError(t, x.CopyFrom(tensorOf(t, tensor.F64, func(i int) float64 { return float64(i) }, 2, 3)))
	part, err := x.Narrow(1, 1, 2)
	require.NoError(t, err)
	e, ctx := &ops.Engine{Alloc: dirtyMemory{}}, t.Context()
	got, err := e.Add(ctx, x, x, ops.Int(1))
	require.NoError(t, err)
	requireData(t, []float64{0, 2, 4, 6, 8, 10}, got)
	got, err = e.Add(ctx, part, tensor.Scalar(1.0), ops.Int(1))
	require.NoError(t, err)
	requireData(t, []float64{2, 3, 5, 6}, got)
	got, err = e.Sum(ctx, part, []int{0}, false, 0)
	require.NoError(t, err)
	requireData(t, []float64{5, 7}, got)
	got, err = e.Exp(ctx, part)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint([]int{2, 2}), fmt.Sprint(got.Shape()))
}
