package agent

import (
	"context"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// invokeType is the type of calls by name, whose values are of any types.
const invokeType = "agent.invoke"

// invocation is what such a call carries.
type invocation struct {
	Args  []any
	Named map[string]any
}

// Named are arguments by name: the fields of the struct that a function takes, or what
// the schema of an operator calls them.
type Named map[string]any

// Invoke calls a function by its name alone and returns its results, however many. The
// arguments are what the function takes, one by one; for a Func, or any function of
// one struct, they may be the fields of the struct as a Named. What the worker called
// finds there it converts: between integers, and to floats, where the number fits; to
// types that have another name only; nil to what can be nil.
//
// Values are of types that the Registry of both workers knows. A CallOption among
// the arguments is none of them but changes the call.
//
// The error is as that of Func.Call. It matches ErrNoFunction where the worker does not
// serve the function, and ErrArguments, from the worker called, where the arguments
// are not those that it takes.
func (a *Agent) Invoke(ctx context.Context, to To, name string, args ...any) ([]any, error) {
	return a.invoke(ctx, target{to: to, typ: invokeType, name: name}, args)
}

// InvokeAsync is Invoke that does not wait for the results, see Func.Go.
func (a *Agent) InvokeAsync(ctx context.Context, to To, name string, args ...any) *Future[[]any] {
	return a.invokeLater(ctx, target{to: to, typ: invokeType, name: name}, args)
}

// invoke makes a call whose values are of any types, for Invoke and Op.
func (a *Agent) invoke(ctx context.Context, t target, args []any) ([]any, error) {
	t, v, err := a.invocation(t, args)
	if err != nil {
		return nil, err
	}
	var results []any
	err = a.roundTrip(ctx, t, &results, &v)
	return results, err
}

// invokeLater is invoke that does not wait for the results.
func (a *Agent) invokeLater(ctx context.Context, t target, args []any) *Future[[]any] {
	t, v, err := a.invocation(t, args)
	if err != nil {
		return inScope(ctx, func() *Future[[]any] { return future.Failed[[]any](err) })
	}
	return goCall[[]any](ctx, a, t, &v)
}

// invocation sorts the arguments of Invoke and Op.
func (a *Agent) invocation(t target, args []any) (target, invocation, error) {
	v := invocation{Args: args}
	if !slices.ContainsFunc(args, isAside) {
		return t, v, nil
	}
	v.Args = nil
	for _, arg := range args {
		switch arg := arg.(type) {
		case CallOption:
			t.opts = append(t.opts, arg)
		case Named:
			if v.Named != nil {
				err := fmt.Errorf("%w: Named is given twice", ErrArguments)
				return t, v, &Error{Op: "call", Func: calledName(t.typ, t.name), Worker: string(t.to), Err: err}
			}
			v.Named = arg
		default:
			v.Args = append(v.Args, arg)
		}
	}
	return t, v, nil
}

// isAside reports whether an argument of Invoke is none of the function by position.
func isAside(arg any) bool {
	switch arg.(type) {
	case Named, CallOption:
		return true
	}
	return false
}

// One is the only result of Invoke or Op, as an R:
//
//	n, err := agent.One[int](a.Invoke(ctx, "worker1", "math.max", 3, 4))
//
// The error is err, or matches ErrResult.
func One[R any](results []any, err error) (R, error) {
	var one R
	if err != nil {
		return one, err
	}
	if len(results) != 1 {
		return one, fmt.Errorf("%w: %d results, want one", ErrResult, len(results))
	}
	one, ok := results[0].(R)
	if !ok {
		return one, fmt.Errorf("%w: the result is %T, want %T", ErrResult, results[0], one)
	}
	return one, nil
}
