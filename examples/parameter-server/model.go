package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// The function and the methods as all workers know them.
var (
	getModel = agent.NewFunc[agent.None, *rref.Ref[*Model]]("server.getModel")
	predict  = rref.NewMethod[*Model, *tensor.Tensor, *autograd.Variable]("Predict")
	update   = rref.NewMethod[*Model, agent.None, agent.None]("Update")
)

// Model is a line y = ax + b. It stays on the server, where the methods run, also concurrently.
type Model struct {
	mu     sync.Mutex
	params [2]*autograd.Variable // a, of shape [1, 1], and b, of shape [1]
}

func newModel() (m *Model, err error) {
	m = &Model{}
	for i, shape := range [][]int{{1, 1}, {1}} {
		t, err := tensor.Zeros(tensor.F32, shape...)
		if err != nil {
			return nil, err
		}
		if m.params[i], err = autograd.Parameter(t); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Predict returns the values of the line at x, of shape [n, 1].
func (m *Model) Predict(ctx context.Context, x *tensor.Tensor) (*autograd.Variable, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return autograd.Linear(ctx, autograd.Constant(x), m.params[0], m.params[1])
}

// Update makes a step by the gradients in the Context of ctx, that of the trainer that calls.
func (m *Model) Update(ctx context.Context, _ agent.None) (agent.None, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.params {
		g, err := dist.FromContext(ctx).Gradient(p)
		if err == nil {
			err = autograd.AddInPlace(autograd.NoGrad(ctx), p, autograd.New(g), -0.1)
		}
		if err != nil {
			return agent.None{}, err
		}
	}
	return agent.None{}, nil
}

func (m *Model) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, err := tensor.At[float32](m.params[0].Tensor(), 0, 0)
	if err != nil {
		return err.Error()
	}
	b, err := tensor.At[float32](m.params[1].Tensor(), 0)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("y = %.2fx %+.2f", a, b)
}

// step trains the model with ten samples of y = 3x - 2.
func step(ctx context.Context, a *agent.Agent, model *rref.Ref[*Model]) error {
	ctx, c, err := dist.WithContext(ctx, a)
	if err != nil {
		return err
	}
	defer c.Close()
	x, y := make([]float32, 10), make([]float32, 10)
	for i := range x {
		x[i] = 2*rand.Float32() - 1
		y[i] = 3*x[i] - 2
	}
	samples, err := tensor.FromSlice(x, len(x), 1)
	if err != nil {
		return err
	}
	want, err := tensor.FromSlice(y, len(y), 1)
	if err != nil {
		return err
	}
	got, err := predict.Call(ctx, model, samples)
	if err != nil {
		return err
	}
	loss, err := autograd.MSELoss(ctx, got, autograd.Constant(want), ops.ReductionMean)
	if err != nil {
		return err
	}
	if err := c.Backward(ctx, loss); err != nil {
		return err
	}
	_, err = update.Call(ctx, model, agent.None{})
	return err
}
