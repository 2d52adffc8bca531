package ops_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

var reductions = []ops.Reduction{ops.ReductionNone, ops.ReductionMean, ops.ReductionSum}

// classCase is the input of a loss over classes.
type classCase struct {
	shape   []int // [C] or [N, C, ...]
	targets []int64
	weights []float64 // nil for none
	ignore  *int64
}

var classCases = []classCase{
	{[]int{3, 4}, []int64{2, 0, 3}, nil, nil},
	{[]int{3, 4}, []int64{2, 0, 3}, []float64{0.5, 1, 2, 0.25}, nil},
	{[]int{3, 4}, []int64{2, 1, -100}, []float64{0.5, 1, 2, 0.25}, nil},
	{[]int{3, 4}, []int64{2, 0, 3}, nil, new(int64(0))},
	{[]int{2, 3}, []int64{7, 7}, nil, new(int64(7))},
	{[]int{5}, []int64{4}, []float64{1, 2, 3, 4, 5}, nil},
	{[]int{2, 3, 2, 2}, []int64{0, 1, 2, 1, -100, 0, 2, 2}, []float64{1, 2, 3}, nil},
	{[]int{0, 3}, nil, nil, nil},
	{[]int{2, 3, 0}, nil, nil, nil},
}

// targetShape returns the shape of the targets for an input of the given shape.
func targetShape(shape []int) []int {
	if len(shape) == 1 {
		return nil
	}
	return append([]int{shape[0]}, shape[2:]...)
}

// tensors returns the targets and the weights of c.
func (c classCase) tensors(t testing.TB, d tensor.DType, layout string) (target, weight *tensor.Tensor) {
	t.Helper()
	target = tensorOf(t, tensor.I64, func(i int) float64 { return float64(c.targets[i]) }, targetShape(c.shape)...)
	if layout != "expanded" { // which would change the targets
		target = arrange(t, target, layout)
	}
	if c.weights != nil {
		weight = tensorOf(t, d, func(i int) float64 { return c.weights[i] }, len(c.weights))
		if layout != "expanded" {
			weight = arrange(t, weight, layout)
		}
	}
	return target, weight
}

// losses returns the losses of the targets and the sum of their weights, by a loop, for contiguous
// logarithms of probabilities.
func (c classCase) losses(logp []float64) (each []float64, total float64) {
	classes, inner := c.shape[0], 1
	if len(c.shape) > 1 {
		classes = c.shape[1]
		for _, size := range c.shape[2:] {
			inner *= size
		}
	}
	ignore := int64(-100)
	if c.ignore != nil {
		ignore = *c.ignore
	}
	for k, class := range c.targets {
		v, w := 0.0, 1.0
		if class != ignore {
			if c.weights != nil {
				w = c.weights[class]
			}
			v = -w * logp[(k/inner*classes+int(class))*inner+k%inner]
			total += w
		}
		each = append(each, v)
	}
	return each, total
}

// reduce returns the losses as the reduction r combines them.
func reduce(each []float64, total float64, r ops.Reduction) []float64 {
	if r == ops.ReductionNone {
		return each
	}
	sum := 0.0
	for _, v := range each {
		sum += v
	}
	if r == ops.ReductionMean {
		sum /= total
	}
	return []float64{sum}
}

// requireSame fails the test unless got has the elements of want, of which NaN equals NaN.
func requireSame(t testing.TB, want []float64, got *tensor.Tensor, tolerance float64) {
	t.Helper()
	data := floats(t, got)
	require.Len(t, data, len(want))
	for i, v := range want {
		if math.IsNaN(v) {
			require.True(t, math.IsNaN(data[i]))
			continue
		}
		require.InDelta(t, v, data[i], tolerance*(1+math.Abs(v)))
	}
}

func forClassCases(t *testing.T, f func(t *testing.T, c classCase, d tensor.DType, layout string, r ops.Reduction, e *ops.Engine)) {
	for i, c := range classCases {
		for _, d := range []tensor.DType{tensor.F32, tensor.F64} {
			for _, layout := range layouts {
				for _, r := range reductions {
					for name, e := range engines {
						t.Run(fmt.Sprint(i, d, layout, r, name), func(t *testing.T) { f(t, c, d, layout, r, e) })
					}
				}
			}
		}
	}
}

func toleranceOf(d tensor.DType) float64 {
	if d == tensor.F32 {
		return 1e-5
	}
	return 1e-12
}

func TestNLLLoss(t *testing.T) {
	s := newSource(t)
	forClassCases(t, func(t *testing.T, c classCase, d tensor.DType, layout string, r ops.Reduction, e *ops.Engine) {
		logp := s.tensor(d, layout, c.shape...)
		target, weight := c.tensors(t, d, layout)
		o := ops.NLLOptions{Reduction: r, IgnoreIndex: c.ignore}
		loss, total, err := e.NLLLoss(t.Context(), logp, target, weight, o)
		require.NoError(t, err)
		each, sum := c.losses(floats(t, logp))
		requireSame(t, reduce(each, sum, r), loss, toleranceOf(d))
		requireClose(t, d, []int{}, []float64{sum}, total)
		require.Equal(t, d, loss.DType())

		grad := s.tensor(d, layout, loss.Shape()...)
		got, err := e.NLLLossBackward(t.Context(), grad, logp, target, weight, o, total)
		require.NoError(t, err)
		require.Equal(t, c.shape, got.Shape())
		requireSame(t, c.gradients(t, grad, r, floats(t, logp)), got, toleranceOf(d))
	})
}

// gradients returns the gradient of logp: the loss is linear in it.
func (c classCase) gradients(t testing.TB, grad *tensor.Tensor, r ops.Reduction, logp []float64) []float64 {
	t.Helper()
	g, out := floats(t, grad), make([]float64, len(logp))
	unit := make([]float64, len(logp))
	for i := range logp {
		unit[i] = 1
		each, total := c.losses(unit)
		if !slices.ContainsFunc(each, func(v float64) bool { return v != 0 }) {
			total = 1 // the loss does not depend on this element, even if the mean is NaN
		}
		for k, v := range reduce(each, total, r) {
			out[i] += v * g[k]
		}
		unit[i] = 0
	}
	return out
}

// logSoftmaxOf returns the logarithm of the softmax of x along the classes.
func (c classCase) logSoftmaxOf(t testing.TB, x []float64) []float64 {
	t.Helper()
	all := tensorOf(t, tensor.F64, func(i int) float64 { return x[i] }, c.shape...)
	out, _ := weightedSoftmax(t, all, all, min(len(c.shape)-1, 1), true)
	return floats(t, out)
}

func TestCrossEntropy(t *testing.T) {
	s := newSource(t)
	forClassCases(t, func(t *testing.T, c classCase, d tensor.DType, layout string, r ops.Reduction, e *ops.Engine) {
		x := s.tensor(d, layout, c.shape...)
		target, weight := c.tensors(t, d, layout)
		o := ops.NLLOptions{Reduction: r, IgnoreIndex: c.ignore}
		loss, logSoftmax, total, err := e.CrossEntropy(t.Context(), x, target, weight, o)
		require.NoError(t, err)
		data := floats(t, x)
		requireClose(t, d, c.shape, c.logSoftmaxOf(t, data), logSoftmax)
		each, sum := c.losses(c.logSoftmaxOf(t, data))
		requireSame(t, reduce(each, sum, r), loss, toleranceOf(d))
		requireClose(t, d, []int{}, []float64{sum}, total)

		grad := s.tensor(d, layout, loss.Shape()...)
		got, err := e.CrossEntropyBackward(t.Context(), grad, logSoftmax, target, weight, o, total)
		require.NoError(t, err)
		require.Equal(t, c.shape, got.Shape())
		g := floats(t, grad)
		for i, v := range floats(t, got) {
			want := differenceOf(data, i, func() float64 {
				each, total := c.losses(c.logSoftmaxOf(t, data))
				weighted := 0.0
				for k, v := range reduce(each, max(total, 1e-300), r) {
					weighted += v * g[k]
				}
				return weighted
			})
			require.InDelta(t, want, v, 1e-5)
		}
	})
}

// Large inputs do not overflow.
func TestCrossEntropyLarge(t *testing.T) {
	x := tensorOf(t, tensor.F32, func(i int) float64 { return float64(i) * 1e4 }, 1, 3)
	target := tensorOf(t, tensor.I64, func(int) float64 { return 1 }, 1)
	loss, logSoftmax, total, err := engines["loops"].CrossEntropy(t.Context(), x, target, nil, ops.NLLOptions{Reduction: ops.ReductionSum})
	require.NoError(t, err)
	requireData(t, []float32{1e4}, loss)
	got, err := engines["loops"].CrossEntropyBackward(t.Context(), loss, logSoftmax, target, nil, ops.NLLOptions{Reduction: ops.ReductionSum}, total)
	require.NoError(t, err)
	requireData(t, []float32{0, -1e4, 1e4}, got)
}

func TestNLLLossErrors(t *testing.T) {
	z := func(d tensor.DType, shape ...int) *tensor.Tensor {
		x, err := tensor.Zeros(d, shape...)
		require.NoError(t, err)
		return x
	}
	long := func(shape ...int) *tensor.Tensor { return z(tensor.I64, shape...) }
	f := func(shape ...int) *tensor.Tensor { return z(tensor.F32, shape...) }
	class := func(v float64) *tensor.Tensor { return tensorOf(t, tensor.I64, func(int) float64 { return v }, 2) }
	e := &ops.Engine{}
	for _, c := range []struct {
		x, target, weight *tensor.Tensor
		o                 ops.NLLOptions
		text              string
	}{
		{f(2, 3), class(7), nil, ops.NLLOptions{}, "Target 7 is out of bounds."},
		{f(2, 3), class(-1), nil, ops.NLLOptions{}, "Target -1 is out of bounds."},
		{f(2, 3), class(-100), nil, ops.NLLOptions{IgnoreIndex: new(int64(0))}, "Target -100 is out of bounds."},
		{f(2, 3), class(math.MinInt64), nil, ops.NLLOptions{}, "Target -9223372036854775808 is out of bounds."},
		{f(2, 0), class(0), nil, ops.NLLOptions{}, "Target 0 is out of bounds."},
		{f(2, 3), f(2), nil, ops.NLLOptions{}, "expected scalar type Long but found Float"},
		{f(2, 3), class(0), f(4), ops.NLLOptions{}, "weight tensor should be defined either for all 3 classes or no classes but got weight tensor of shape: [4]"},
		{f(2, 3), class(0), f(), ops.NLLOptions{}, "weight tensor should be defined either for all 3 classes or no classes but got weight tensor of shape: []"},
		{f(2, 3), class(0), z(tensor.F64, 3), ops.NLLOptions{}, "expected scalar type Float but found Double"},
		{f(2, 3), class(0), nil, ops.NLLOptions{Reduction: 3}, "3 is not a valid value for reduction"},
		{f(3, 3), class(0), nil, ops.NLLOptions{}, "Expected input batch_size (3) to match target batch_size (2)."},
		{f(3, 3), long(), nil, ops.NLLOptions{}, "Expected input batch_size (3) to match target batch_size (1)."},
		{f(2, 3), long(2, 1), nil, ops.NLLOptions{}, "0D or 1D target tensor expected, multi-target not supported"},
		{f(2, 3, 4), long(2, 5), nil, ops.NLLOptions{}, "Expected target size [2, 4], got [2, 5]"},
		{f(3), long(3), nil, ops.NLLOptions{}, "size mismatch (got input: [3], target: [3])"},
		{f(), long(), nil, ops.NLLOptions{}, "Expected 1 or more dimensions (got 0)"},
	} {
		_, _, err := e.NLLLoss(t.Context(), c.x, c.target, c.weight, c.o)
		requireValueError(t, err, c.text)
		_, _, _, err = e.CrossEntropy(t.Context(), c.x, c.target, c.weight, c.o)
		requireValueError(t, err, c.text)
		_, err = e.NLLLossBackward(t.Context(), f(), c.x, c.target, c.weight, c.o, f())
		requireValueError(t, err, c.text)
		_, err = e.CrossEntropyBackward(t.Context(), f(), c.x, c.target, c.weight, c.o, f())
		requireValueError(t, err, c.text)
	}
	_, _, err := e.NLLLoss(t.Context(), long(2, 3), class(0), nil, ops.NLLOptions{})
	requireValueError(t, err, "\"nll_loss\" not implemented for 'Long'")
	mean := ops.NLLOptions{Reduction: ops.ReductionMean}
	for _, f32 := range []func(context.Context, *tensor.Tensor, *tensor.Tensor, *tensor.Tensor, *tensor.Tensor, ops.NLLOptions, *tensor.Tensor) (*tensor.Tensor, error){e.NLLLossBackward, e.CrossEntropyBackward} {
		var invalid *ops.ValueError
		for _, bad := range []*tensor.Tensor{f(1), z(tensor.F64), long()} {
			_, err = f32(t.Context(), bad, f(2, 3), class(0), nil, mean, f())
			require.ErrorAs(t, err, &invalid)
			_, err = f32(t.Context(), f(), f(2, 3), class(0), nil, mean, bad)
			require.ErrorAs(t, err, &invalid)
		}
		_, err = f32(t.Context(), f(3), f(2, 3), class(0), nil, ops.NLLOptions{}, f())
		require.ErrorAs(t, err, &invalid)
	}
}

// A few bytes can stand for an input of any size.
func TestLossesHuge(t *testing.T) {
	e := &ops.Engine{MaxBytes: 1 << 16}
	one, class := tensor.Scalar(float32(1)), tensor.Scalar(int64(1))
	var limit *ops.LimitError
	_, _, _, err := e.CrossEntropy(t.Context(), expand(t, one, 2, 1<<40), expand(t, class, 2), nil, ops.NLLOptions{})
	require.ErrorAs(t, err, &limit)
	_, _, err = e.NLLLoss(t.Context(), expand(t, one, 1<<30, 2), expand(t, class, 1<<30), nil, ops.NLLOptions{})
	require.ErrorAs(t, err, &limit)
	_, err = e.MSELoss(t.Context(), expand(t, one, 1<<40), one, ops.ReductionSum)
	require.ErrorAs(t, err, &limit)
	x, y := tensorOf(t, tensor.F32, func(int) float64 { return 1 }, 1000, 1), tensorOf(t, tensor.F32, func(int) float64 { return 1 }, 1000)
	_, err = e.MSELoss(t.Context(), x, y, ops.ReductionSum)
	require.ErrorAs(t, err, &limit)
	_, _, err = e.MSELossBackward(t.Context(), one, x, y, ops.ReductionSum, [2]bool{true, true})
	require.ErrorAs(t, err, &limit)
}

func TestMSELoss(t *testing.T) {
	s := newSource(t)
	for _, c := range []struct{ x, y, shape []int }{
		{[]int{}, []int{}, []int{}}, {[]int{3, 4}, []int{3, 4}, []int{3, 4}}, {[]int{3, 4}, []int{4}, []int{3, 4}},
		{[]int{3, 1}, []int{1, 4}, []int{3, 4}}, {[]int{}, []int{2, 3}, []int{2, 3}}, {[]int{2, 1, 3}, []int{4, 1}, []int{2, 4, 3}},
		{[]int{0, 3}, []int{0, 3}, []int{0, 3}}, {[]int{0, 3}, []int{1}, []int{0, 3}},
	} {
		for _, d := range []tensor.DType{tensor.F32, tensor.F64} {
			for _, layout := range layouts {
				for _, r := range reductions {
					for name, e := range engines {
						t.Run(fmt.Sprint(c, d, layout, r, name), func(t *testing.T) {
							x, y := s.tensor(d, layout, c.x...), s.tensor(d, layout, c.y...)
							checkMSELoss(t, s, e, x, y, c.shape, r)
						})
					}
				}
			}
		}
	}
}

// checkMSELoss compares the loss and the gradients of x and y with loops over the shape to which
// they are broadcast.
func checkMSELoss(t *testing.T, s *source, e *ops.Engine, x, y *tensor.Tensor, shape []int, r ops.Reduction) {
	t.Helper()
	a, b := floats(t, expand(t, x, shape...)), floats(t, expand(t, y, shape...))
	each := make([]float64, len(a))
	for i := range a {
		each[i] = (a[i] - b[i]) * (a[i] - b[i])
	}
	loss, err := e.MSELoss(t.Context(), x, y, r)
	require.NoError(t, err)
	require.Equal(t, x.DType(), loss.DType())
	requireSame(t, reduce(each, float64(len(each)), r), loss, toleranceOf(x.DType()))

	grad := s.tensor(x.DType(), "contiguous", loss.Shape()...)
	g := floats(t, grad)
	differences := tensorOf(t, tensor.F64, func(i int) float64 {
		switch r {
		case ops.ReductionNone:
			return 2 * (a[i] - b[i]) * g[i]
		case ops.ReductionMean:
			return 2 * (a[i] - b[i]) * g[0] / float64(len(a))
		}
		return 2 * (a[i] - b[i]) * g[0]
	}, shape...)
	gx, gy, err := e.MSELossBackward(t.Context(), grad, x, y, r, [2]bool{true, true})
	require.NoError(t, err)
	requireClose(t, x.DType(), x.Shape(), sumsTo(t, differences, x.Shape()), gx)
	want := sumsTo(t, differences, y.Shape())
	for i := range want {
		want[i] = -want[i]
	}
	requireClose(t, y.DType(), y.Shape(), want, gy)

	for i := range 4 {
		needs := [2]bool{i&1 != 0, i&2 != 0}
		gx, gy, err := e.MSELossBackward(t.Context(), grad, x, y, r, needs)
		require.NoError(t, err)
		require.Equal(t, needs, [2]bool{gx != nil, gy != nil})
	}
}

// sumsTo returns the sums of the elements of x that broadcasting shape to the shape of x would make
// from one element.
func sumsTo(t testing.TB, x *tensor.Tensor, shape []int) []float64 {
	t.Helper()
	n, err := tensor.NumElements(shape)
	require.NoError(t, err)
	numbers := expand(t, tensorOf(t, tensor.I64, func(i int) float64 { return float64(i) }, shape...), x.Shape()...)
	out := make([]float64, n)
	values := floats(t, x)
	for i, k := range floats(t, numbers) {
		out[int(k)] += values[i]
	}
	return out
}

func TestMSELossErrors(t *testing.T) {
	z := func(d tensor.DType, shape ...int) *tensor.Tensor {
		x, err := tensor.Zeros(d, shape...)
		require.NoError(t, err)
		return x
	}
	e := &ops.Engine{}
	both := [2]bool{true, true}
	_, err := e.MSELoss(t.Context(), z(tensor.F32, 2), z(tensor.F32, 3), ops.ReductionMean)
	requireSizeError(t, err)
	_, err = e.MSELoss(t.Context(), z(tensor.F32, 2), z(tensor.F64, 2), ops.ReductionMean)
	requireValueError(t, err, "expected scalar type Float but found Double")
	_, err = e.MSELoss(t.Context(), z(tensor.I64, 2), z(tensor.I64, 2), ops.ReductionMean)
	requireValueError(t, err, "\"mse_loss\" not implemented for 'Long'")
	_, err = e.MSELoss(t.Context(), z(tensor.F32, 2), z(tensor.F32, 2), 9)
	requireValueError(t, err, "9 is not a valid value for reduction")
	_, _, err = e.MSELossBackward(t.Context(), z(tensor.F32, 3), z(tensor.F32, 2), z(tensor.F32, 2), ops.ReductionNone, both)
	requireValueError(t, err, "the gradient of mse_loss must have the shape [2], not [3]")
	_, _, err = e.MSELossBackward(t.Context(), z(tensor.F32, 1), z(tensor.F32, 2), z(tensor.F32, 2), ops.ReductionSum, both)
	requireValueError(t, err, "the gradient of mse_loss must have no dimensions, but has the shape [1]")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = e.MSELossBackward(ctx, z(tensor.F32), z(tensor.F32), z(tensor.F32), ops.ReductionSum, both)
	require.ErrorIs(t, err, context.Canceled)
}
