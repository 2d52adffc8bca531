package dist

import (
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// backwardMethod computes gradients on the owner of a Variable.
var backwardMethod = rref.NewMethod[*autograd.Variable, PassOptions, agent.None]("dist.Backward")

// BackwardRef computes gradients as Context.BackwardWith does, for a root to which f refers, in the
// Context of ctx. On the owner of the root, ctx may have none: the gradients are then those of
// autograd.Backward.
//
// The error matches ErrRoots if the value is no Variable, ErrNoContext if ctx has no Context and the
// root is on another worker, or is one of BackwardWith, autograd.Backward, or of a call.
func BackwardRef(ctx context.Context, f *rref.Ref[*autograd.Variable], o PassOptions) error {
	if f == nil {
		return errNoVariable
	}
	c := FromContext(ctx)
	if f.IsOwner() {
		root, err := f.Local()
		switch {
		case err != nil:
			return rootError(err)
		case root == nil:
			return errNoVariable
		case c != nil:
			return c.BackwardWith(ctx, o, root)
		case o.RetainGraph:
			return autograd.Backward(ctx, []*autograd.Variable{root}, autograd.RetainGraph())
		}
		return autograd.Backward(ctx, []*autograd.Variable{root})
	}
	if c == nil {
		return fmt.Errorf("%w: User RRefs require 'dist_autograd_ctx_id' to be specified", ErrNoContext)
	}
	_, err := backwardMethod.Call(ctx, f, o)
	return rootError(err)
}

// errNoVariable is the error of a root that is no Variable.
var errNoVariable = fmt.Errorf("%w: RRef should contain a tensor for .backward()", ErrRoots)

// rootError returns err, the error of using the value of a reference as a root. If the value has
// another type, the result matches ErrRoots too.
func rootError(err error) error {
	if errors.Is(err, rref.ErrType) || errors.Is(err, rref.ErrNoMethod) {
		return fmt.Errorf("%w: %w", errNoVariable, err)
	}
	return err
}

// serveBackward computes gradients of root, a value of this worker, for another worker.
func serveBackward(root *autograd.Variable, ctx context.Context, o PassOptions) (agent.None, error) {
	c := FromContext(ctx)
	if c == nil {
		return agent.None{}, ErrNoContext
	}
	return agent.None{}, c.BackwardWith(ctx, o, root)
}

// addMethods adds the methods of this package to the references of the agent, if it has any, and
// registers references to Variables, as arguments of Agent.Invoke.
func addMethods(c *agent.Config) error {
	if err := c.Registry.Register("autograd.VariableRef", &rref.Ref[*autograd.Variable]{}); err != nil {
		return err
	}
	for _, e := range c.Extensions {
		if refs, ok := e.(*rref.Refs); ok {
			return refs.AddMethods(backwardMethod.Serve(serveBackward), stepMethod.Serve((*stepper).step))
		}
	}
	return nil
}
