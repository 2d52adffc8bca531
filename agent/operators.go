package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/aten"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// opType is the type of messages that call an operator. Its name is that of the
// message.
const opType = "aten"

// Op calls an operator of the worker's table and returns its results:
//
//	sum, err := agent.One[*tensor.Tensor](a.Op(ctx, "worker1", "aten::add", x, y, agent.Named{"alpha": 2}))
//
// See package aten for names and values. A Named gives arguments by the names of the
// schema, a CallOption changes the call. The error is as that of Func.Call; what does
// not fit the schema matches ErrArguments, an operator that the worker called does
// not have ErrNoFunction.
func (a *Agent) Op(ctx context.Context, to To, name string, args ...any) ([]any, error) {
	return a.invoke(ctx, target{to: to, typ: opType, name: name}, args)
}

// OpAsync is Op that does not wait for the results, see Func.Go.
func (a *Agent) OpAsync(ctx context.Context, to To, name string, args ...any) *Future[[]any] {
	return a.invokeLater(ctx, target{to: to, typ: opType, name: name}, args)
}

// opHandler serves the operators of a table.
type opHandler struct{ table *aten.Table }

func (h opHandler) Open(r *Request) (Task, error) {
	t := &opTask{}
	if err := decodeArgs(r, &t.invocation); err != nil {
		return nil, err
	}
	var err error
	t.op, t.args, err = h.table.Resolve(r.Name(), t.Args, t.Named)
	if err == nil {
		return t, nil
	}
	if _, unknown := errors.AsType[*aten.UnknownError](err); unknown {
		return nil, fmt.Errorf("%w: %w", ErrNoFunction, err)
	}
	return nil, fmt.Errorf("%w: %w", ErrArguments, err)
}

type opTask struct {
	invocation
	op      *aten.Operator
	args    []aten.Value
	results []any
}

// Run computes the operator.
func (t *opTask) Run(ctx context.Context, r *Request) {
	var err error
	if t.results, err = t.op.Run(ctx, t.args); err != nil {
		r.failed(err)
		return
	}
	// An error is the answer then.
	_ = r.Reply(&t.results)
}

// shortElements bounds the tensors of an operator that runs on the goroutine that
// reads. Broadcasting and products make at most a quarter of its square of them, which
// takes some ten microseconds. Of tensors without elements that is not true: the product
// of [n, 0] and [0, n] has n*n of them.
const shortElements = 256

func (t *opTask) short() bool {
	if !t.op.Short {
		return false
	}
	elements := 0
	for _, v := range t.args {
		switch v := v.(type) {
		case *tensor.Tensor:
			if v.Len() == 0 {
				return false
			}
			elements += v.Len()
		case nil, int64, float64, bool, string:
		default: // of whatever size
			return false
		}
	}
	return elements <= shortElements
}

// shortTask is a task of which it depends on its values whether it is short.
type shortTask interface{ short() bool }
