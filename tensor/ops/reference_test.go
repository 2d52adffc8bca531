package ops_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops/gonumblas"
)

// dirtyMemory allocates memory whose bytes are all 255, so that each float is NaN and each integer -1.
type dirtyMemory struct{}

func (dirtyMemory) Alloc(size int) (*tensor.Storage, error) {
	s, err := tensor.Heap{}.Alloc(size)
	if err != nil {
		return nil, err
	}
	p, err := s.Bytes()
	for i := range p {
		p[i] = 255
	}
	return s, err
}

// engines are the engines with which each operator must give the same results.
var engines = map[string]*ops.Engine{
	"loops":       {},
	"dirty loops": {Alloc: dirtyMemory{}},
	"gonum":       {Gemm: gonumblas.Gemm{}},
	"dirty gonum": {Alloc: dirtyMemory{}, Gemm: gonumblas.Gemm{}},
}

// source makes random tensors.
type source struct {
	t   testing.TB
	rng *rand.Rand
}

func newSource(t testing.TB) *source { return &source{t, rand.New(rand.NewPCG(1, 2))} }

// tensor returns a tensor of normally distributed elements. The layout is one of layouts.
func (s *source) tensor(d tensor.DType, layout string, shape ...int) *tensor.Tensor {
	s.t.Helper()
	wide := tensorOf(s.t, tensor.F64, func(int) float64 { return s.rng.NormFloat64() }, shape...)
	return arrange(s.t, castTo(s.t, wide, d), layout)
}

// layouts are ways in which the elements of a tensor lie in memory. The elements of "expanded" are
// the same along the first dimension, with stride 0.
var layouts = []string{"contiguous", "transposed", "narrowed", "expanded", "strided", "read-only"}

// arrange returns a tensor with the elements of t, except for the layout "expanded", in another
// layout.
func arrange(t testing.TB, x *tensor.Tensor, layout string) *tensor.Tensor {
	t.Helper()
	if x.Rank() == 0 {
		return x
	}
	var err error
	last := x.Rank() - 1
	switch layout {
	case "transposed":
		x = clone(t, transpose(t, x, 0, last))
		x = transpose(t, x, 0, last)
	case "narrowed", "strided":
		shape := append([]int(nil), x.Shape()...)
		shape[last] = 2*shape[last] + 1
		wide, err := tensor.Zeros(x.DType(), shape...)
		require.NoError(t, err)
		part, err := wide.Narrow(last, 1, x.Shape()[last])
		if layout == "strided" {
			part, err = wide.Slice(last, 1, shape[last], 2)
		}
		require.NoError(t, err)
		require.NoError(t, part.CopyFrom(x))
		x = part
	case "expanded":
		if x.Shape()[0] == 0 {
			break
		}
		shape := x.Shape()
		x, err = x.Narrow(0, 0, 1)
		require.NoError(t, err)
		x, err = clone(t, x).Expand(shape...)
		require.NoError(t, err)
	case "read-only":
		x = clone(t, x)
		x.Storage().SetReadOnly(true)
	}
	return x
}

func transpose(t testing.TB, x *tensor.Tensor, a, b int) *tensor.Tensor {
	t.Helper()
	x, err := x.Transpose(a, b)
	require.NoError(t, err)
	return x
}

func clone(t testing.TB, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	x, err := x.Clone()
	require.NoError(t, err)
	return x
}

// tensorOf returns a tensor of dtype F32, F64 or I64 whose element i, in row-major order, is f(i).
func tensorOf(t testing.TB, d tensor.DType, f func(i int) float64, shape ...int) *tensor.Tensor {
	t.Helper()
	n, err := tensor.NumElements(shape)
	require.NoError(t, err)
	values := make([]float64, n)
	for i := range values {
		values[i] = f(i)
	}
	x, err := tensor.FromSlice(values, shape...)
	require.NoError(t, err)
	return castTo(t, x, d)
}

// castTo returns a tensor of dtype F32, F64 or I64 with the elements of x, of dtype F64.
func castTo(t testing.TB, x *tensor.Tensor, d tensor.DType) *tensor.Tensor {
	t.Helper()
	from := floats(t, x)
	var err error
	switch d {
	case tensor.F32:
		to := make([]float32, len(from))
		for i, v := range from {
			to[i] = float32(v)
		}
		x, err = tensor.FromSlice(to, x.Shape()...)
	case tensor.I64:
		to := make([]int64, len(from))
		for i, v := range from {
			to[i] = int64(v)
		}
		x, err = tensor.FromSlice(to, x.Shape()...)
	default:
		require.Equal(t, tensor.F64, d)
	}
	require.NoError(t, err)
	return x
}

// floats returns the elements of x, of dtype F32, F64 or I64, in row-major order.
func floats(t testing.TB, x *tensor.Tensor) []float64 {
	t.Helper()
	c := clone(t, x)
	if c.DType() == tensor.F64 {
		data, err := tensor.Data[float64](c)
		require.NoError(t, err)
		return data
	}
	out := make([]float64, c.Len())
	if c.DType() == tensor.I64 {
		data, err := tensor.Data[int64](c)
		require.NoError(t, err)
		for i, v := range data {
			out[i] = float64(v)
		}
		return out
	}
	data, err := tensor.Data[float32](c)
	require.NoError(t, err)
	for i, v := range data {
		out[i] = float64(v)
	}
	return out
}

// requireClose fails the test unless got has the dtype, the shape and, within the precision of the
// dtype, the elements of want.
func requireClose(t testing.TB, d tensor.DType, shape []int, want []float64, got *tensor.Tensor) {
	t.Helper()
	require.Equal(t, d, got.DType())
	require.Equal(t, fmt.Sprint(shape), fmt.Sprint(got.Shape()))
	w, err := tensor.FromSlice(want, shape...)
	require.NoError(t, err)
	g, err := tensor.FromSlice(floats(t, got), shape...)
	require.NoError(t, err)
	tolerance := 1e-11
	if d == tensor.F32 {
		tolerance = 2e-5
	}
	near, err := tensor.AllClose(g, w, tolerance, tolerance)
	require.NoError(t, err)
	require.True(t, near, "got %v, want %v", floats(t, got), want)
}

// requireValueError fails the test unless err is a *ops.ValueError with that text.
func requireValueError(t testing.TB, err error, text string) {
	t.Helper()
	var invalid *ops.ValueError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, text, invalid.Reason)
}
