package main

import (
	"context"
	"math"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// The function and the methods as all workers know them.
var (
	newLayer = agent.NewFunc[Size, *Layer]("split.newLayer")
	forward  = rref.NewMethod[*Layer, *autograd.Variable, *autograd.Variable]("Forward")
	params   = rref.NewMethod[*Layer, agent.None, []*rref.Ref[*autograd.Variable]]("Params")
)

// Size is the size of a layer.
type Size struct{ In, Out int }

// Layer is a layer with tanh. It stays on its worker.
type Layer struct {
	weight, bias *autograd.Variable
	refs         []*rref.Ref[*autograd.Variable]
}

// doNewLayer is the function newLayer.
func doNewLayer(ctx context.Context, s Size) (*Layer, error) {
	l := &Layer{}
	for i, shape := range [][]int{{s.Out, s.In}, {s.Out}} {
		t, err := tensor.Zeros(tensor.F32, shape...)
		if err != nil {
			return nil, err
		}
		values, err := tensor.MutableData[float32](t)
		if err != nil {
			return nil, err
		}
		for k := range values {
			values[k] = float32(math.Sin(float64(7*k + i))) // instead of random numbers
		}
		x, err := autograd.Parameter(t)
		if err != nil {
			return nil, err
		}
		l.refs = append(l.refs, rref.Own(agent.FromContext(ctx), x))
		if i == 0 {
			l.weight = x
		} else {
			l.bias = x
		}
	}
	return l, nil
}

// Forward returns the output of the layer.
func (l *Layer) Forward(ctx context.Context, x *autograd.Variable) (*autograd.Variable, error) {
	y, err := autograd.Linear(ctx, x, l.weight, l.bias)
	if err != nil {
		return nil, err
	}
	return autograd.Tanh(ctx, y)
}

// Params returns references to the parameters.
func (l *Layer) Params(context.Context, agent.None) ([]*rref.Ref[*autograd.Variable], error) {
	return l.refs, nil
}
