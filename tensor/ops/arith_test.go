package ops_test

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// elementwise is an operator on two elements, in the forms that the engine has.
type elementwise struct {
	name    string
	of      func(v, w float64) float64
	tensors func(e *ops.Engine, t testing.TB, x, y *tensor.Tensor) (*tensor.Tensor, error)
	number  func(e *ops.Engine, t testing.TB, x *tensor.Tensor, n ops.Number) (*tensor.Tensor, error)
	inPlace func(e *ops.Engine, t testing.TB, x, y *tensor.Tensor) error
}

// elementwises are the operators on two elements. Sums use a factor.
var elementwises = []elementwise{
	{
		"add", func(v, w float64) float64 { return v + w },
		func(e *ops.Engine, t testing.TB, x, y *tensor.Tensor) (*tensor.Tensor, error) {
			return e.Add(t.Context(), x, y, ops.Int(1))
		},
		func(e *ops.Engine, t testing.TB, x *tensor.Tensor, n ops.Number) (*tensor.Tensor, error) {
			return e.AddNumber(t.Context(), x, n, ops.Int(1))
		},
		func(e *ops.Engine, t testing.TB, x, y *tensor.Tensor) error {
			return e.AddInPlace(t.Context(), x, y, ops.Int(1))
		},
	}, {
		"sub with alpha", func(v, w float64) float64 { return v - 3*w },
		func(e *ops.Engine, t testing.TB, x, y *tensor.Tensor) (*tensor.Tensor, error) {
			return e.Sub(t.Context(), x, y, ops.Int(3))
		},
		func(e *ops.Engine, t testing.TB, x *tensor.Tensor, n ops.Number) (*tensor.Tensor, error) {
			return e.SubNumber(t.Context(), x, n, ops.Int(3))
		},
		func(e *ops.Engine, t testing.TB, x, y *tensor.Tensor) error {
			return e.SubInPlace(t.Context(), x, y, ops.Int(3))
		},
	}, {
		"mul", func(v, w float64) float64 { return v * w },
		func(e *ops.Engine, t testing.TB, x, y *tensor.Tensor) (*tensor.Tensor, error) {
			return e.Mul(t.Context(), x, y)
		},
		func(e *ops.Engine, t testing.TB, x *tensor.Tensor, n ops.Number) (*tensor.Tensor, error) {
			return e.MulNumber(t.Context(), x, n)
		},
		func(e *ops.Engine, t testing.TB, x, y *tensor.Tensor) error {
			return e.MulInPlace(t.Context(), x, y)
		},
	}, {
		"div", func(v, w float64) float64 { return v / w },
		func(e *ops.Engine, t testing.TB, x, y *tensor.Tensor) (*tensor.Tensor, error) {
			return e.Div(t.Context(), x, y)
		},
		func(e *ops.Engine, t testing.TB, x *tensor.Tensor, n ops.Number) (*tensor.Tensor, error) {
			return e.DivNumber(t.Context(), x, n)
		},
		func(e *ops.Engine, t testing.TB, x, y *tensor.Tensor) error {
			return e.DivInPlace(t.Context(), x, y)
		},
	},
}

// broadcastShapes are pairs of shapes, and the shape to which both are broadcast.
var broadcastShapes = [][3][]int{
	{{2, 3}, {2, 3}, {2, 3}},
	{{2, 3}, {3}, {2, 3}},
	{{3}, {2, 3}, {2, 3}},
	{{4, 1, 3}, {2, 1}, {4, 2, 3}},
	{{2, 1, 2, 1, 2, 1, 2, 1, 2}, {2, 2, 2, 2, 2, 2, 2, 2}, {2, 2, 2, 2, 2, 2, 2, 2, 2}},
	{{}, {5}, {5}},
	{{}, {}, {}},
	{{0, 3}, {1, 3}, {0, 3}},
	{{3, 1}, {3, 700}, {3, 700}},
}

// at returns the element of the values of a tensor of the given shape that is repeated at element i
// of a tensor of the shape to.
func at(values []float64, shape, to []int, i int) float64 {
	position, step := 0, 1
	for dim := len(to) - 1; dim >= 0; dim-- {
		index := i % to[dim]
		i /= to[dim]
		if own := dim - len(to) + len(shape); own >= 0 {
			if shape[own] != 1 {
				position += index * step
			}
			step *= shape[own]
		}
	}
	return values[position]
}

// combined returns f of the elements of x and y, broadcast to the given shape.
func combined(t testing.TB, f func(v, w float64) float64, x, y *tensor.Tensor, shape []int) []float64 {
	t.Helper()
	n, err := tensor.NumElements(shape)
	require.NoError(t, err)
	v, w := floats(t, x), floats(t, y)
	out := make([]float64, n)
	for i := range out {
		out[i] = f(at(v, x.Shape(), shape, i), at(w, y.Shape(), shape, i))
	}
	return out
}

// TestElementwise compares sums, products and quotients with a loop over the elements, for all
// layouts of both operands.
func TestElementwise(t *testing.T) {
	s := newSource(t)
	for _, op := range elementwises {
		for _, shapes := range broadcastShapes {
			for _, first := range layouts {
				for _, second := range layouts {
					for _, d := range []tensor.DType{tensor.F32, tensor.F64} {
						x, y := s.tensor(d, first, shapes[0]...), s.tensor(d, second, shapes[1]...)
						want := combined(t, op.of, x, y, shapes[2])
						for name, e := range engines {
							got, err := op.tensors(e, t, x, y)
							require.NoError(t, err, "%s %s", op.name, name)
							requireClose(t, d, shapes[2], want, got)
						}
					}
				}
			}
		}
	}
}

func TestElementwiseNumber(t *testing.T) {
	s := newSource(t)
	for _, op := range elementwises {
		for _, layout := range layouts {
			x := s.tensor(tensor.F32, layout, 3, 4)
			for _, n := range []ops.Number{ops.Float(2.5), ops.Int(-3), ops.Bool(true)} {
				if op.name == "sub with alpha" && n == ops.Bool(true) {
					continue // is an error
				}
				w := tensor.Scalar(n.Float64())
				for _, e := range engines {
					got, err := op.number(e, t, x, n)
					require.NoError(t, err)
					requireClose(t, tensor.F32, []int{3, 4}, combined(t, op.of, x, w, []int{3, 4}), got)
				}
			}
		}
	}
}

// TestPromotion checks dtypes of results that depend on the operands' ranks and on numbers.
func TestPromotion(t *testing.T) {
	e, ctx := &ops.Engine{}, t.Context()
	vector := func(d tensor.DType) *tensor.Tensor {
		x, err := tensor.Zeros(d, 2)
		require.NoError(t, err)
		return x
	}
	scalar := func(d tensor.DType) *tensor.Tensor {
		x, err := tensor.Zeros(d)
		require.NoError(t, err)
		return x
	}
	for _, c := range []struct {
		x, y *tensor.Tensor
		want tensor.DType
	}{
		{vector(tensor.F32), vector(tensor.F64), tensor.F64},
		{vector(tensor.F32), scalar(tensor.F64), tensor.F32},
		{vector(tensor.I64), scalar(tensor.F16), tensor.F16},
		{vector(tensor.U8), vector(tensor.I8), tensor.I16},
		{vector(tensor.F16), vector(tensor.BF16), tensor.F32},
		{vector(tensor.F64), scalar(tensor.C64), tensor.C128},
		{vector(tensor.Bool), vector(tensor.Bool), tensor.Bool},
	} {
		got, err := e.Add(ctx, c.x, c.y, ops.Int(1))
		require.NoError(t, err)
		require.Equal(t, c.want, got.DType(), "%v + %v", c.x, c.y)
		require.Equal(t, c.want, ops.ResultType(c.x, c.y))
	}
	got, err := e.MulNumber(ctx, vector(tensor.I32), ops.Float(0.5))
	require.NoError(t, err)
	require.Equal(t, tensor.F32, got.DType())
	got, err = e.DivNumber(ctx, vector(tensor.I32), ops.Int(2))
	require.NoError(t, err)
	require.Equal(t, tensor.F32, got.DType())
	require.Equal(t, tensor.I32, ops.NumberResultType(tensor.I32, ops.Bool(true)))
}

func TestArithmeticErrors(t *testing.T) {
	e, ctx := &ops.Engine{}, t.Context()
	x := tensorOf(t, tensor.I64, func(int) float64 { return 1 }, 2)
	y := tensorOf(t, tensor.I64, func(int) float64 { return 1 }, 3)
	_, err := e.Add(ctx, x, y, ops.Int(1))
	var size *ops.SizeError
	require.ErrorAs(t, err, &size)
	require.Equal(t, ops.SizeError{A: 2, B: 3}, *size)
	_, err = e.Add(ctx, x, x, ops.Float(0.5))
	requireValueError(t, err, "For integral input tensors, argument alpha must not be a floating point number.")
	_, err = e.Add(ctx, x, x, ops.Bool(true))
	requireValueError(t, err, "Boolean alpha only supported for Boolean results.")
	_, err = e.SubNumber(ctx, x, ops.Bool(true), ops.Int(1))
	requireValueError(t, err, "Subtraction, the `-` operator, with a bool tensor is not supported")
	_, err = e.Compare(ctx, ops.Ge+1, x, x)
	requireValueError(t, err, "there is no comparison 6")
}

// TestComparisons checks each comparison of two tensors and of a tensor and a number.
func TestComparisons(t *testing.T) {
	nan := math.NaN()
	values := []float64{1, 2, 2, nan}
	x := tensorOf(t, tensor.F64, func(i int) float64 { return values[i] }, 4)
	y := tensorOf(t, tensor.F64, func(i int) float64 { return []float64{2, 2, 1, nan}[i] }, 4)
	for _, c := range []struct {
		op      ops.Comparison
		tensors []bool
		two     []bool // of x and the number 2
	}{
		{ops.Eq, []bool{false, true, false, false}, []bool{false, true, true, false}},
		{ops.Ne, []bool{true, false, true, true}, []bool{true, false, false, true}},
		{ops.Lt, []bool{true, false, false, false}, []bool{true, false, false, false}},
		{ops.Le, []bool{true, true, false, false}, []bool{true, true, true, false}},
		{ops.Gt, []bool{false, false, true, false}, []bool{false, false, false, false}},
		{ops.Ge, []bool{false, true, true, false}, []bool{false, true, true, false}},
	} {
		for _, e := range engines {
			got, err := e.Compare(t.Context(), c.op, x, y)
			require.NoError(t, err)
			requireData(t, c.tensors, got)
			got, err = e.CompareNumber(t.Context(), c.op, x, ops.Int(2))
			require.NoError(t, err)
			requireData(t, c.two, got)
			reversed := []ops.Comparison{ops.Eq, ops.Ne, ops.Gt, ops.Ge, ops.Lt, ops.Le}[c.op]
			got, err = e.Compare(t.Context(), reversed, tensor.Scalar(2.0), x)
			require.NoError(t, err)
			requireData(t, c.two, got)
		}
	}
}

// TestAddAllocates checks that a sum of contiguous tensors allocates no more than its result, and
// that rows and columns that are repeated are not copied.
func TestAddAllocates(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the tag makes every storage allocate more")
	}
	e, ctx := &ops.Engine{}, t.Context()
	shape := []int{8, 4096}
	matrix := func(shape ...int) *tensor.Tensor {
		return tensorOf(t, tensor.F32, func(i int) float64 { return float64(i) }, shape...)
	}
	x := matrix(shape...)
	result := testing.AllocsPerRun(100, func() { _, _ = tensor.Zeros(tensor.F32, shape...) })
	sum := testing.AllocsPerRun(100, func() { _, _ = e.Add(ctx, x, x, ops.Int(2)) })
	require.LessOrEqual(t, sum, result)

	for _, y := range []*tensor.Tensor{matrix(4096), matrix(8, 1), arrange(t, x, "narrowed"), expand(t, matrix(8, 1), 8, 4096)} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := e.Add(ctx, x, y, ops.Int(1))
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8*4096*4*3/2), "%v with strides %v was copied", y, y.Strides())
	}
}

// TestNumbers checks the conversion of numbers to elements.
func TestNumbers(t *testing.T) {
	e, ctx := &ops.Engine{}, t.Context()
	for _, c := range []struct {
		n    ops.Number
		d    tensor.DType
		want any
	}{
		{ops.Int(-1), tensor.I8, int8(-1)},
		{ops.Float(2.9), tensor.I32, int32(2)},
		{ops.Bool(true), tensor.F32, float32(1)},
		{ops.Int(3), tensor.Bool, true},
		{ops.Float(0), tensor.Bool, false},
		{ops.Float(math.Inf(1)), tensor.C128, complex(math.Inf(1), 0)},
		{ops.Int(1<<53 + 1), tensor.I64, int64(1<<53 + 1)},
	} {
		got, err := e.Full(ctx, c.d, c.n, 1)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(c.want), element(t, got), "%v as %v", c.n, c.d)
	}
	for _, c := range []struct {
		n ops.Number
		d tensor.DType
	}{{ops.Int(256), tensor.U8}, {ops.Int(-1), tensor.U8}, {ops.Float(math.NaN()), tensor.I64}, {ops.Float(1e30), tensor.I32}} {
		_, err := e.Full(ctx, c.d, c.n, 2)
		requireValueError(t, err, fmt.Sprintf("value cannot be converted to type %v without overflow", c.d))
	}
}

// element returns the first element of x as text.
func element(t testing.TB, x *tensor.Tensor) string {
	t.Helper()
	index := slices.Repeat([]int{0}, x.Rank())
	var v any
	var err error
	switch x.DType() {
	case tensor.Bool:
		v, err = tensor.At[bool](x, index...)
	case tensor.I8:
		v, err = tensor.At[int8](x, index...)
	case tensor.I32:
		v, err = tensor.At[int32](x, index...)
	case tensor.I64:
		v, err = tensor.At[int64](x, index...)
	case tensor.F32:
		v, err = tensor.At[float32](x, index...)
	default:
		v, err = tensor.At[complex128](x, index...)
	}
	require.NoError(t, err)
	return fmt.Sprint(v)
}
