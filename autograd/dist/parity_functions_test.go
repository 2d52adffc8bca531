package dist_test

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
)

// nestedArgs is the argument of my_py_nested_call.
type nestedArgs struct {
	X, Y variable
	Dst  int // rank of the worker before the one that is called next
	Hops int // calls that pass the arguments on, before the one that adds
}

var (
	pyAdd      = agent.NewFunc[pair, variable]("my_py_add")
	nestedCall = agent.NewFunc[nestedArgs, variable]("my_py_nested_call")
)

// addPair adds both.
func addPair(ctx context.Context, p pair) (variable, error) { return autograd.Add(ctx, p.X, p.Y) }

// pyAddStep is a step that adds by a served function.
func pyAddStep(x, y variable) step[variable] { return served(pyAdd, addPair, pair{x, y}) }

// passOn calls the worker after v.Dst, which passes v on, or adds after the last hop.
func passOn(ctx context.Context, v nestedArgs) (variable, error) {
	a, next := agent.FromContext(ctx), (v.Dst+1)%parityWorld
	if v.Hops > 0 {
		return nestedCall.Call(ctx, a, agent.Rank(next), nestedArgs{v.X, v.Y, next, v.Hops - 1})
	}
	return pyAdd.Call(ctx, a, agent.Rank(next), pair{v.X, v.Y})
}

// commonFunctions returns the functions that dense and sparse cases call.
func commonFunctions() agent.Funcs {
	return agent.Funcs{pyAdd.Serve(addPair), nestedCall.Serve(passOn)}
}
