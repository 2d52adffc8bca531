package ops_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// deviceCase is an operator on x and y, which have one shape, with the targets and the weights of losses.
type deviceCase = func(ctx context.Context, e *ops.Engine, x, y, target, weight *tensor.Tensor) (*tensor.Tensor, error)

// onXY returns a deviceCase of an operator on x and y only.
func onXY(f func(e *ops.Engine, ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error)) deviceCase {
	return func(ctx context.Context, e *ops.Engine, x, y, _, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return f(e, ctx, x, y)
	}
}

// onX returns a deviceCase of an operator on x only.
func onX(f func(e *ops.Engine, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error)) deviceCase {
	return func(ctx context.Context, e *ops.Engine, x, _, _, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return f(e, ctx, x)
	}
}

// softmaxCases are operators along dimension dim.
func softmaxCases(dim int) map[string]deviceCase {
	return map[string]deviceCase{
		"softmax": onX(func(e *ops.Engine, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return e.Softmax(ctx, x, dim)
		}),
		"logarithm of softmax": onX(func(e *ops.Engine, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return e.LogSoftmax(ctx, x, dim)
		}),
		"gradient of softmax": onXY(func(e *ops.Engine, ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error) {
			return e.SoftmaxBackward(ctx, x, y, dim)
		}),
		"gradient of logarithm of softmax": onXY(func(e *ops.Engine, ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error) {
			return e.LogSoftmaxBackward(ctx, x, y, dim)
		}),
		"maxima": onX(func(e *ops.Engine, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			top, _, err := e.MaxDim(ctx, x, dim, true)
			return top, err
		}),
	}
}

// lossCases are losses and their gradients.
func lossCases(o ops.NLLOptions) map[string]deviceCase {
	scaled := func(ctx context.Context, e *ops.Engine, loss *tensor.Tensor) (*tensor.Tensor, error) {
		return e.MulNumber(ctx, loss, ops.Float(0.5)) // some gradient of the shape of the loss
	}
	return map[string]deviceCase{
		"nll": func(ctx context.Context, e *ops.Engine, x, _, target, weight *tensor.Tensor) (*tensor.Tensor, error) {
			loss, _, err := e.NLLLoss(ctx, x, target, weight, o)
			return loss, err
		},
		"gradient of nll": func(ctx context.Context, e *ops.Engine, x, _, target, weight *tensor.Tensor) (*tensor.Tensor, error) {
			loss, total, err := e.NLLLoss(ctx, x, target, weight, o)
			if err != nil {
				return nil, err
			}
			if loss, err = scaled(ctx, e, loss); err != nil {
				return nil, err
			}
			return e.NLLLossBackward(ctx, loss, x, target, weight, o, total)
		},
		"cross entropy": func(ctx context.Context, e *ops.Engine, x, _, target, _ *tensor.Tensor) (*tensor.Tensor, error) {
			loss, _, _, err := e.CrossEntropy(ctx, x, target, nil, o)
			return loss, err
		},
		"gradient of cross entropy": func(ctx context.Context, e *ops.Engine, x, _, target, weight *tensor.Tensor) (*tensor.Tensor, error) {
			loss, logp, total, err := e.CrossEntropy(ctx, x, target, weight, o)
			if err != nil {
				return nil, err
			}
			if loss, err = scaled(ctx, e, loss); err != nil {
				return nil, err
			}
			return e.CrossEntropyBackward(ctx, loss, logp, target, weight, o, total)
		},
		"squares": onXY(func(e *ops.Engine, ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error) {
			return e.MSELoss(ctx, x, y, o.Reduction)
		}),
		"gradient of squares": onXY(func(e *ops.Engine, ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error) {
			row, err := y.Narrow(0, 0, 1)
			if err != nil {
				return nil, err
			}
			loss, err := e.MSELoss(ctx, x, row, o.Reduction)
			if err != nil {
				return nil, err
			}
			_, gy, err := e.MSELossBackward(ctx, loss, x, row, o.Reduction, [2]bool{false, true})
			return gy, err
		}),
	}
}

// TestDeviceLosses checks that functions, softmax and losses on a device give the results of the host. The
// stream of one operand does not begin before everything has been enqueued.
func TestDeviceLosses(t *testing.T) {
	ignored := int64(2)
	for _, shape := range [][]int{{5, 3}, {4, 3, 2}, {3}} {
		cases := map[string]deviceCase{
			"tanh": onX((*ops.Engine).Tanh), "sigmoid": onX((*ops.Engine).Sigmoid), "relu": onX((*ops.Engine).Relu),
			"gradient of relu": onXY((*ops.Engine).ReluBackward), "gradient of tanh": onXY((*ops.Engine).TanhBackward),
			"gradient of sigmoid": onXY((*ops.Engine).SigmoidBackward),
		}
		for dim := range shape {
			for name, c := range softmaxCases(dim) {
				cases[name+" "+string(rune('0'+dim))] = c
			}
		}
		for name, o := range map[string]ops.NLLOptions{
			"of each": {}, "mean": {Reduction: ops.ReductionMean}, "sum without one": {Reduction: ops.ReductionSum, IgnoreIndex: &ignored},
		} {
			for loss, c := range lossCases(o) {
				cases[loss+" "+name] = c
			}
		}
		for name, c := range cases {
			requireOnDevice(t, name, shape, c)
		}
	}
}

// TestDeviceSoftmaxOfScalar checks softmax and the maximum of a tensor without dimensions on a device.
func TestDeviceSoftmaxOfScalar(t *testing.T) {
	for name, c := range softmaxCases(-1) {
		requireOnDevice(t, name, nil, c)
	}
}

// requireOnDevice compares the result of c on a device with that on the host.
func requireOnDevice(t *testing.T, name string, shape []int, c deviceCase) {
	f, s := newDeviceFixture(t), newSource(t)
	x, y := s.tensor(tensor.F32, "contiguous", shape...), s.tensor(tensor.F32, "contiguous", shape...)
	targets, classes := shape, 1
	if at := min(1, len(shape)-1); at >= 0 {
		targets, classes = slices.Delete(slices.Clone(shape), at, at+1), shape[at]
	}
	target := tensorOf(t, tensor.I64, func(i int) float64 { return float64(i % classes) }, targets...)
	weight := tensorOf(t, tensor.F32, func(i int) float64 { return float64(i) + 0.5 }, classes)
	release := f.streams[0].(*delayed.Stream).Hold()
	ctx := device.WithStream(t.Context(), f.streams[1])
	got, err := c(ctx, f.engine, f.send(x, f.streams[0]), f.send(y, f.streams[1]), f.send(target, f.streams[0]), f.send(weight, f.streams[1]))
	require.NoError(t, err, name)
	require.Equal(t, f.device, got.Device(), name)
	release()
	arrived := f.fetch(got)
	want, err := c(t.Context(), &ops.Engine{}, x, y, target, weight)
	require.NoError(t, err, name)
	require.Equal(t, want.Shape(), got.Shape(), name)
	requireClose(t, tensor.F32, want.Shape(), floats(t, want), arrived)
}
