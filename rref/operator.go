package rref

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// The types of calls of operators on tensors, and of those whose result the owner keeps.
const (
	typeOp       = "rref.op"
	typeOpRemote = "rref.op.remote"
)

// Operator is an operator of package aten whose first argument is a tensor to which a reference
// refers, with the type of its only result. All workers serve the operators in agent.Config.Operators;
// in contrast to methods they need not be listed in Options.
//
//	var add = rref.NewOperator[*tensor.Tensor]("aten::add")
//	sum, err := add.Call(ctx, f, y, agent.Named{"alpha": 2}) // f refers to x; sum is x + 2*y
type Operator[R any] struct{ name string }

// NewOperator returns the Operator with that name, as agent.Agent.Op takes it.
func NewOperator[R any](name string) Operator[R] { return Operator[R]{name} }

// Call runs the operator with the tensor of f and args on the owner of f, and waits for the result. An
// agent.Named among args gives arguments by name, an agent.CallOption changes the call. The memory of
// args is free when Call returns. The error is that of Agent.Op, or as that of Ref.ToHere. It matches
// ErrType if the operator has not one result, and agent.ErrResult if the result is not of type R.
func (o Operator[R]) Call(ctx context.Context, f *Ref[*tensor.Tensor], args ...any) (R, error) {
	v, opts := newInvocation(args)
	return callOn[invocation, R](ctx, f.get(), typeOp, o.name, "", v, opts)
}

// Go runs the operator as Call does, but returns a future of the result instead of waiting for it.
func (o Operator[R]) Go(ctx context.Context, f *Ref[*tensor.Tensor], args ...any) *agent.Future[R] {
	v, opts := newInvocation(args)
	return goOn[invocation, R](ctx, f.get(), typeOp, o.name, "", v, opts)
}

// Remote runs the operator as Call does; the owner keeps the result, and Remote returns a reference to
// it at once. Errors are as those of package function Remote.
func (o Operator[R]) Remote(ctx context.Context, f *Ref[*tensor.Tensor], args ...any) *Ref[R] {
	v, opts := newInvocation(args)
	return remoteOn[invocation, R](ctx, f.get(), typeOpRemote, o.name, "", v, opts)
}

// openOperator is callHandler.open for operators.
func (r *Refs) openOperator(q *agent.Request, _ []byte) (methodTask, error) {
	t := &boundOperator{table: r.config.Operators, name: q.Name()}
	return t, q.Decode(&t.args)
}

// boundOperator is a call of an operator.
type boundOperator struct {
	table *aten.Table
	name  string
	args  invocation
}

func (t *boundOperator) call(ctx context.Context, ptr any) (any, error) {
	first := reflect.ValueOf(ptr).Elem().Interface()
	op, args, err := t.table.Resolve(t.name, append([]any{first}, t.args.Args...), t.args.Named)
	if _, unknown := errors.AsType[*aten.UnknownError](err); unknown {
		return nil, fmt.Errorf("%w: %w", agent.ErrNoFunction, err)
	}
	if _, isTensor := first.(*tensor.Tensor); err != nil && !isTensor {
		return nil, fmt.Errorf("%w: the operator %s is called on a value of type %T: %w", ErrType, t.name, first, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", agent.ErrArguments, err)
	}
	results, err := op.Run(ctx, args)
	if err != nil {
		return nil, err
	}
	return single(results)
}
