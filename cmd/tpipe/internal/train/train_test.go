package train

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// single trains the network of c in a plain loop with package autograd, from the given parameters of
// both layers, which it changes. It returns the losses.
func single(t *testing.T, c Config, params []*tensor.Tensor) (losses []float64) {
	t.Helper()
	training, _, err := Load()
	require.NoError(t, err)
	batches, err := training.batches(c.Batch)
	require.NoError(t, err)
	ctx := t.Context()
	var w []*autograd.Variable
	for _, p := range params {
		x, err := autograd.Parameter(p)
		require.NoError(t, err)
		w = append(w, x)
	}
	for range c.Epochs {
		for _, b := range batches {
			loss, err := forward(ctx, w, b)
			require.NoError(t, err)
			value, err := tensor.At[float32](loss.Tensor())
			require.NoError(t, err)
			losses = append(losses, float64(value))
			require.NoError(t, autograd.Backward(ctx, []*autograd.Variable{loss}))
			for _, x := range w {
				require.NoError(t, autograd.AddInPlace(autograd.NoGrad(ctx), x, autograd.New(x.Grad()), -c.LR))
				x.ZeroGrad()
			}
		}
	}
	return losses
}

// forward returns the loss of a network with the parameters w.
func forward(ctx context.Context, w []*autograd.Variable, d Digits) (*autograd.Variable, error) {
	h, err := autograd.Linear(ctx, autograd.Constant(d.X), w[0], w[1])
	if err != nil {
		return nil, err
	}
	if h, err = autograd.Relu(ctx, h); err != nil {
		return nil, err
	}
	y, err := autograd.Linear(ctx, h, w[2], w[3])
	if err != nil {
		return nil, err
	}
	return autograd.CrossEntropy(ctx, y, autograd.Constant(d.Y), nil, ops.NLLOptions{Reduction: ops.ReductionMean})
}

// initial returns the random parameters of both layers of a network.
func initial(t *testing.T, c Config) (all []*tensor.Tensor) {
	t.Helper()
	for _, stage := range Names[1:] {
		params, err := shapeOf(stage, c.Hidden).random(c.Seed, stage)
		require.NoError(t, err)
		all = append(all, params...)
	}
	return all
}

// TestSameAsOneProcess compares the losses and the final weights with those of a loop in one process.
func TestSameAsOneProcess(t *testing.T) {
	for _, c := range []Config{
		{Hidden: 37, Batch: 50, LR: 0.3, Epochs: 3, Seed: 7},
		{Hidden: 1, Batch: TrainN, LR: 0.01, Epochs: 2},
		{Hidden: 200, Batch: 1000, LR: 1, Epochs: 2, Seed: 1},
	} {
		params := initial(t, c)
		want := single(t, c, params)
		path := filepath.Join(t.TempDir(), "trained.safetensors")
		r := run(t, Files{Save: path}, c)
		require.Len(t, r.Losses, len(want))
		require.InEpsilonSlice(t, want, r.Losses, 1e-4)
		require.Equal(t, len(want), r.Steps)
		require.Len(t, r.TestAccuracy, c.Epochs)
		got, _, err := safetensors.ReadFile(path, safetensors.Options{})
		require.NoError(t, err)
		for i, name := range []string{"stage0.weight", "stage0.bias", "stage1.weight", "stage1.bias"} {
			close, err := tensor.AllClose(params[i], got[name], 1e-4, 1e-5)
			require.NoError(t, err)
			require.True(t, close, name)
		}
	}
}

// TestAccuracy checks that the network learns, and that the accuracy is that of the parameters.
func TestAccuracy(t *testing.T) {
	c := Config{Hidden: 40, Batch: 64, LR: 0.2, Epochs: 12}
	r := run(t, Files{}, c)
	params := initial(t, c)
	single(t, c, params)
	_, test, err := Load()
	require.NoError(t, err)
	require.InDelta(t, accuracy(t, params, test), r.TestAccuracy[c.Epochs-1], 1e-3)
	require.Greater(t, r.TestAccuracy[c.Epochs-1], 0.8)
	require.Less(t, r.Losses[len(r.Losses)-1], r.Losses[0]/2)
}

// accuracy returns which part of the images a network with these parameters recognizes, computed number
// by number.
func accuracy(t *testing.T, params []*tensor.Tensor, d Digits) float64 {
	t.Helper()
	values := make([][]float32, len(params))
	for i, p := range params {
		var err error
		values[i], err = tensor.Data[float32](p)
		require.NoError(t, err)
	}
	layer := func(x, weight, bias []float32) []float32 {
		y := append([]float32{}, bias...)
		for i := range y {
			for k := range x {
				y[i] += x[k] * weight[i*len(x)+k]
			}
		}
		return y
	}
	pixels, err := tensor.Data[float32](d.X)
	require.NoError(t, err)
	digits, err := tensor.Data[int64](d.Y)
	require.NoError(t, err)
	correct := 0
	for i, digit := range digits {
		h := layer(pixels[i*Pixels:(i+1)*Pixels], values[0], values[1])
		for k := range h {
			h[k] = max(h[k], 0)
		}
		y, best := layer(h, values[2], values[3]), 0
		for k := range y {
			if y[k] > y[best] {
				best = k
			}
		}
		if int64(best) == digit {
			correct++
		}
	}
	return float64(correct) / float64(len(digits))
}

// perturb changes weights of the worker that serves it.
var perturb = agent.NewFunc[agent.None, agent.None]("test.perturb")

// doPerturb changes the weights of a pixel that many images have, or of one hidden unit.
func (p *Part) doPerturb(context.Context, agent.None) (agent.None, error) {
	weight := p.layer.Load().weight.Tensor()
	for i := range weight.Shape()[0] {
		w, err := tensor.At[float32](weight, i, 10)
		if err != nil {
			return agent.None{}, err
		}
		if err := tensor.Set(weight, w+0.01*float32(i), i, 10); err != nil {
			return agent.None{}, err
		}
	}
	return agent.None{}, nil
}

// TestPerturbed checks that the losses depend on the parameters of both stages: a change of one weight on
// a stage changes the losses from the next step on.
func TestPerturbed(t *testing.T) {
	c := Config{Hidden: 20, Batch: 200, LR: 0.1, Epochs: 2}
	plain := run(t, Files{}, c)
	for rank := 1; rank <= 2; rank++ {
		g := start(t, Files{})
		const changed = 5
		r, err := g.parts[0].Run(t.Context(), g.agents[0], c, func(p Progress) {
			if p.Step != changed {
				return
			}
			_, err := perturb.Call(t.Context(), g.agents[0], agent.Rank(rank), agent.None{})
			require.NoError(t, err)
		})
		require.NoError(t, err)
		g.shutdown(t)
		require.Equal(t, plain.Losses[:changed], r.Losses[:changed])
		require.NotEqual(t, plain.Losses[changed], r.Losses[changed], Names[rank])
	}
}

// TestWorkers checks what the result has about each worker: the calls of each step, gradients with the
// shapes of the network, and the parameters, of which the trainer has none.
func TestWorkers(t *testing.T) {
	const steps, epochs = 15, 1
	c := Config{Hidden: 24, Batch: 100, LR: 0.1, Epochs: epochs}
	r := run(t, Files{}, c)
	require.Equal(t, steps, r.Steps)
	require.Len(t, r.Workers, 3)
	hidden := int64(4 * TrainN * c.Hidden * epochs) // gradients of the output of stage0, which pass the trainer
	for i, want := range []WorkerResult{
		{Name: Trainer, GradientMessages: steps, GradientBytes: hidden, Device: "cpu:0"},
		{Name: Stage0, GradientMessages: steps, GradientBytes: hidden, Parameters: 65 * 24, Device: "cpu:0"},
		{Name: Stage1, GradientMessages: steps, GradientBytes: 4 * steps, Parameters: 25 * 10, Device: "cpu:0"},
	} {
		got := r.Workers[i]
		require.Positive(t, got.PID)
		require.GreaterOrEqual(t, got.Calls, int64(steps))
		got.PID, got.Calls, got.Channels = 0, 0, nil
		require.Equal(t, want, got)
	}
}

// TestRunErrors checks the errors of a training.
func TestRunErrors(t *testing.T) {
	g := start(t, Files{})
	_, err := g.parts[0].Run(t.Context(), g.agents[0], Config{Hidden: 3, Batch: 32, LR: 1e30, Epochs: 2}, func(Progress) {})
	step := (*StepError)(nil)
	require.ErrorAs(t, err, &step)
	require.ErrorIs(t, err, ErrDiverged)

	_, err = g.parts[0].Run(t.Context(), g.agents[0], Config{Hidden: -3, Batch: 32, LR: 1, Epochs: 2}, func(Progress) {})
	require.ErrorContains(t, err, "-3 hidden units")

	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err = g.parts[0].Run(ctx, g.agents[0], Config{Hidden: 3, Batch: 32, LR: 0.1, Epochs: 2}, func(p Progress) {
		if p.Step == 10 {
			cancel(why)
		}
	})
	require.ErrorIs(t, err, why)
}
