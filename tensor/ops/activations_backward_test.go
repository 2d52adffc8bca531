package ops_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// activation is an operator on single numbers, with its gradient as the engine computes it: from the
// result if fromResult is true, and otherwise from the argument.
type activation struct {
	name       string
	f          func(float64) float64
	positive   bool // f is defined for positive numbers only
	fromResult bool
	backward   func(e *ops.Engine, ctx context.Context, grad, x *tensor.Tensor) (*tensor.Tensor, error)
}

func activations() []activation {
	all := []activation{
		{"relu", func(v float64) float64 { return max(v, 0) }, false, true, (*ops.Engine).ReluBackward},
		{"tanh", math.Tanh, false, true, (*ops.Engine).TanhBackward},
		{"sigmoid", func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }, false, true, (*ops.Engine).SigmoidBackward},
		{"sqrt", math.Sqrt, true, true, (*ops.Engine).SqrtBackward},
	}
	for _, exponent := range []float64{0, 0.5, 1, 2, 3, 4, 2.5, -1, -2} {
		all = append(all, activation{
			fmt.Sprint("pow ", exponent), func(v float64) float64 { return math.Pow(v, exponent) }, true, false,
			func(e *ops.Engine, ctx context.Context, grad, x *tensor.Tensor) (*tensor.Tensor, error) {
				return e.PowBackward(ctx, grad, x, exponent)
			},
		})
	}
	return all
}

// The gradients are those that central differences give.
func TestActivationsBackward(t *testing.T) {
	s := newSource(t)
	for _, a := range activations() {
		for _, shape := range [][]int{{}, {7}, {3, 4}, {2, 3, 4}, {0, 3}, {3, 0}} {
			for _, layout := range layouts {
				for name, e := range engines {
					t.Run(fmt.Sprint(a.name, shape, layout, name), func(t *testing.T) {
						values := make([]float64, len(floats(t, s.tensor(tensor.F64, "contiguous", shape...))))
						for i := range values {
							values[i] = s.rng.NormFloat64()
							if a.positive {
								values[i] = math.Abs(values[i]) + 0.5
							}
						}
						x := arrange(t, tensorOf(t, tensor.F64, func(i int) float64 { return values[i] }, shape...), layout)
						grad := s.tensor(tensor.F64, layout, shape...)
						const h = 1e-6
						g, want := floats(t, grad), floats(t, x)
						given := x
						if a.fromResult {
							given = arrange(t, tensorOf(t, tensor.F64, func(i int) float64 { return a.f(want[i]) }, shape...), layout)
						}
						for i, v := range want {
							want[i] = g[i] * (a.f(v+h) - a.f(v-h)) / (2 * h)
						}
						got, err := a.backward(e, t.Context(), grad, given)
						require.NoError(t, err)
						require.True(t, got.IsContiguous())
						for i, v := range floats(t, got) {
							require.InDelta(t, want[i], v, 1e-6*(1+math.Abs(want[i])))
						}
						require.Equal(t, fmt.Sprint(shape), fmt.Sprint(got.Shape()))
					})
				}
			}
		}
	}
}

func TestActivationsBackwardF32(t *testing.T) {
	s := newSource(t)
	for _, a := range activations() {
		grad, x := s.tensor(tensor.F32, "contiguous", 4, 5), s.tensor(tensor.F32, "contiguous", 4, 5)
		x = tensorOf(t, tensor.F32, func(i int) float64 { return math.Abs(floats(t, x)[i]) + 0.5 }, 4, 5)
		want, err := a.backward(engines["loops"], t.Context(), wide(t, grad), wide(t, x))
		require.NoError(t, err)
		got, err := a.backward(engines["dirty loops"], t.Context(), grad, x)
		require.NoError(t, err)
		requireClose(t, tensor.F32, []int{4, 5}, floats(t, want), got)
	}
}

// wide returns a copy of x with dtype F64.
func wide(t testing.TB, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	return tensorOf(t, tensor.F64, func(i int) float64 { return floats(t, x)[i] }, x.Shape()...)
}

// The special cases of single elements.
func TestActivationsBackwardLimits(t *testing.T) {
	e := &ops.Engine{}
	nan, inf := math.NaN(), math.Inf(1)
	x, err := tensor.FromSlice([]float64{nan, 0, inf, -inf}, 4)
	require.NoError(t, err)
	grad, err := tensor.FromSlice([]float64{1, 2, 3, 4}, 4)
	require.NoError(t, err)

	got, err := e.ReluBackward(t.Context(), grad, x)
	require.NoError(t, err)
	requireData(t, []float64{1, 0, 3, 0}, got)

	got, err = e.PowBackward(t.Context(), grad, x, 0)
	require.NoError(t, err)
	requireData(t, []float64{0, 0, 0, 0}, got)

	got, err = e.SqrtBackward(t.Context(), grad, x)
	require.NoError(t, err)
	require.True(t, math.IsInf(floats(t, got)[1], 1))
	require.Zero(t, floats(t, got)[2])
}

// softmaxOf returns the softmax of each line along dim, or its logarithm, and the function to
// differentiate: the weighted sum of the elements.
func weightedSoftmax(t testing.TB, x, weights *tensor.Tensor, dim int, logarithm bool) (out *tensor.Tensor, sum float64) {
	t.Helper()
	moved, w := x, weights
	if x.Rank() > 1 {
		moved, w = transpose(t, x, dim, x.Rank()-1), transpose(t, weights, dim, x.Rank()-1)
	}
	values, ws := floats(t, moved), floats(t, w)
	n := 1
	if x.Rank() > 0 {
		n = x.Shape()[dim]
	}
	for at := 0; at < len(values); at += n {
		line, total := values[at:at+n], 0.0
		for _, v := range line {
			total += math.Exp(v)
		}
		for i, v := range line {
			line[i] = math.Exp(v) / total
			if logarithm {
				line[i] = v - math.Log(total)
			}
			sum += line[i] * ws[at+i]
		}
	}
	out = tensorOf(t, tensor.F64, func(i int) float64 { return values[i] }, moved.Shape()...)
	if x.Rank() > 1 {
		out = transpose(t, out, dim, x.Rank()-1)
	}
	return out, sum
}

func TestSoftmaxBackward(t *testing.T) {
	s := newSource(t)
	for _, shape := range [][]int{{}, {5}, {3, 4}, {2, 3, 4}, {0, 3}, {3, 0}} {
		for dim := range max(len(shape), 1) {
			for _, layout := range layouts {
				for name, e := range engines {
					for _, logarithm := range []bool{false, true} {
						t.Run(fmt.Sprint(shape, dim, layout, name, logarithm), func(t *testing.T) {
							x, grad := s.tensor(tensor.F64, "contiguous", shape...), s.tensor(tensor.F64, layout, shape...)
							out, _ := weightedSoftmax(t, x, grad, dim, logarithm)
							f := e.SoftmaxBackward
							if logarithm {
								f = e.LogSoftmaxBackward
							}
							for _, d := range []int{dim, dim - max(len(shape), 1)} {
								got, err := f(t.Context(), grad, out, d)
								require.NoError(t, err)
								data := floats(t, x)
								for i, g := range floats(t, got) {
									require.InDelta(t, differenceOf(data, i, func() float64 {
										_, sum := weightedSoftmax(t, tensorOf(t, tensor.F64, func(i int) float64 { return data[i] }, shape...), grad, dim, logarithm)
										return sum
									}), g, 1e-6)
								}
							}
						})
					}
				}
			}
		}
	}
}

// differenceOf returns the central difference of f by element i of data, to which f refers.
func differenceOf(data []float64, i int, f func() float64) float64 {
	const h = 1e-6
	v := data[i]
	data[i] = v + h
	up := f()
	data[i] = v - h
	down := f()
	data[i] = v
	return (up - down) / (2 * h)
}

func TestBackwardErrors(t *testing.T) {
	z := func(d tensor.DType, shape ...int) *tensor.Tensor {
		x, err := tensor.Zeros(d, shape...)
		require.NoError(t, err)
		return x
	}
	e := &ops.Engine{MaxBytes: 1 << 10}
	softmax := func(ctx context.Context, grad, out *tensor.Tensor) (*tensor.Tensor, error) {
		return e.SoftmaxBackward(ctx, grad, out, -1)
	}
	for name, f := range map[string]func(ctx context.Context, grad, out *tensor.Tensor) (*tensor.Tensor, error){
		"relu": e.ReluBackward, "tanh": e.TanhBackward, "sigmoid": e.SigmoidBackward, "sqrt": e.SqrtBackward, "softmax": softmax,
	} {
		_, err := f(t.Context(), z(tensor.I64, 2), z(tensor.I64, 2))
		requireValueError(t, err, fmt.Sprintf("\"%s\" not implemented for 'Long'", name))
		_, err = f(t.Context(), z(tensor.F64, 2), z(tensor.F32, 2))
		requireValueError(t, err, "expected scalar type Float but found Double")
		_, err = f(t.Context(), z(tensor.F32, 3), z(tensor.F32, 2))
		requireValueError(t, err, fmt.Sprintf("the gradient of %s must have the shape [2], not [3]", name))
		huge := expand(t, tensor.Scalar(float32(1)), 1<<40)
		var limit *ops.LimitError
		_, err = f(t.Context(), huge, huge)
		require.ErrorAs(t, err, &limit)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = f(ctx, z(tensor.F32, 2), z(tensor.F32, 2))
		require.ErrorIs(t, err, context.Canceled)
	}
	for _, dim := range []int{-3, 2, math.MinInt, math.MaxInt} {
		_, err := e.LogSoftmaxBackward(t.Context(), z(tensor.F32, 2, 2), z(tensor.F32, 2, 2), dim)
		requireValueError(t, err, fmt.Sprintf("Dimension out of range (expected to be in range of [-2, 1], but got %d)", dim))
	}
}
