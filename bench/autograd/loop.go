// Package autograd measures distributed autograd between workers in separate processes, and compares it
// with that of PyTorch in the same run: the training of tpipe train, the loop of PyTorch's end-to-end
// test, and a pass alone.
package autograd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Configure adds references and distributed autograd to the configuration of a worker. It is for
// rpc.Start and rpc.RunWorker.
func Configure(c *agent.Config) {
	c.Extensions = append(c.Extensions, rref.New(rref.Options{}), dist.New(dist.Options{}))
}

// Loop is the loop of PyTorch's end-to-end test: six chained sums of tensors on worker1, a reference to a
// seventh one, which is fetched, and the pass through all of them.
type Loop struct {
	agent *agent.Agent
	x, y  *autograd.Variable
}

// NewLoop returns the loop of the worker of a.
func NewLoop(a *agent.Agent) (*Loop, error) {
	l := &Loop{agent: a}
	for _, p := range []**autograd.Variable{&l.x, &l.y} {
		t, err := tensor.Zeros(tensor.F32, 3, 3)
		if err == nil {
			err = tensor.Fill(t, float32(1))
		}
		if err == nil {
			*p, err = autograd.Parameter(t)
		}
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Iterate makes one iteration, and returns how long the pass took. It checks the gradients.
func (l *Loop) Iterate(ctx context.Context) (pass time.Duration, err error) {
	ctx, c, err := dist.WithContext(ctx, l.agent)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	sum := l.y
	for range 6 {
		if sum, err = agent.One[*autograd.Variable](l.agent.Op(ctx, "worker1", "aten::add", l.x, sum)); err != nil {
			return 0, err
		}
	}
	ref := rref.RemoteOp[*autograd.Variable](ctx, l.agent, "worker1", "aten::add", l.x, sum)
	if sum, err = ref.ToHere(ctx); err != nil {
		return 0, err
	}
	loss, err := autograd.Sum(ctx, sum)
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := c.Backward(ctx, loss); err != nil {
		return 0, err
	}
	pass = time.Since(begun)
	return pass, errors.Join(check(c, l.x, 7), check(c, l.y, 1), ref.Release(ctx))
}

// check returns an error unless all elements of the gradient of x are want.
func check(c *dist.Context, x *autograd.Variable, want float32) error {
	g, err := c.Gradient(x)
	if err != nil {
		return err
	}
	values, err := tensor.Data[float32](g.Tensor())
	for _, v := range values {
		if v != want {
			return fmt.Errorf("the gradient is %g, want %g", v, want)
		}
	}
	return err
}
