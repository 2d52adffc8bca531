package dist

import (
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// Optimizer changes parameters, which may be on several workers, by their gradients in a Context. The
// work is done by the owners of the parameters.
type Optimizer struct {
	steppers []*rref.Ref[*stepper] // one for each owner
	err      error
}

// NewSGD returns an Optimizer that subtracts lr times the gradient from each parameter. See NewOptimizer.
func NewSGD(params []*rref.Ref[*autograd.Variable], lr float64) *Optimizer {
	return NewOptimizer(params, SGD{LR: lr})
}

// NewOptimizer returns an Optimizer of params by the algorithm a: SGD, Adam or Adagrad. It returns at
// once; all errors are those of Step. The owners of the parameters keep the state of the algorithm until
// Release. The parameters must be leaves that require gradients.
func NewOptimizer(params []*rref.Ref[*autograd.Variable], a Algorithm) *Optimizer {
	o := &Optimizer{}
	byOwner := map[agent.Incarnation][]*rref.Ref[*autograd.Variable]{}
	var owners []agent.Incarnation
	for _, f := range params {
		if f == nil || f.Agent() == nil {
			o.err = fmt.Errorf("%w: a parameter is a nil reference", rref.ErrNoAgent)
			return o
		}
		owner := f.OwnerIncarnation()
		if byOwner[owner] == nil {
			owners = append(owners, owner)
		}
		byOwner[owner] = append(byOwner[owner], f)
	}
	for _, owner := range owners {
		all := byOwner[owner]
		o.steppers = append(o.steppers, rref.Remote(context.Background(), all[0].Agent(), agent.To(all[0].OwnerName()), newStepper, stepperArgs{Params: all, Algorithm: a}))
	}
	return o
}

// Step changes all parameters that have a gradient in the Context of ctx, by one call to each owner, and
// waits until that is done. The error joins those of the owners; it matches ErrNoContext if ctx has no
// Context.
func (o *Optimizer) Step(ctx context.Context) error {
	if o.err != nil {
		return o.err
	}
	if FromContext(ctx) == nil {
		return fmt.Errorf("dist: step: %w: the context.Context has none", ErrNoContext)
	}
	all := make([]*agent.Future[agent.None], len(o.steppers))
	for i, f := range o.steppers {
		all[i] = stepMethod.Go(ctx, f, agent.None{})
	}
	errs := make([]error, len(all))
	for i, f := range all {
		if _, err := f.Wait(ctx); err != nil {
			errs[i] = fmt.Errorf("dist: step on %s: %w", o.steppers[i].OwnerName(), err)
		}
	}
	return errors.Join(errs...)
}

// Release has the owners drop the state of the Optimizer, which must not be used any more.
func (o *Optimizer) Release(ctx context.Context) error {
	var errs []error
	for _, f := range o.steppers {
		errs = append(errs, f.Release(ctx))
	}
	return errors.Join(errs...)
}

type stepperArgs struct {
	_         struct{} `tensorpipe:"dist.stepperArgs"`
	Params    []*rref.Ref[*autograd.Variable]
	Algorithm Algorithm
}

var (
	newStepper = agent.NewFunc[stepperArgs, *stepper]("dist.newStepper")
	stepMethod = rref.NewMethod[*stepper, agent.None, agent.None]("dist.Step")
)

// stepper is the part of an Optimizer on the owner of some parameters.
type stepper struct {
	refs      []*rref.Ref[*autograd.Variable]
	params    []*autograd.Variable
	algorithm updater
}

// TensorpipeName implements codec.Namer: other workers refer to a stepper, but never receive one.
func (*stepper) TensorpipeName() string { return "dist.stepper" }

// makeStepper makes a stepper of parameters of this worker.
func makeStepper(_ context.Context, args stepperArgs) (*stepper, error) {
	if args.Algorithm == nil {
		return nil, fmt.Errorf("%w: no algorithm", ErrAlgorithm)
	}
	s := &stepper{refs: args.Params}
	for _, f := range args.Params {
		x, err := f.Local()
		if err != nil {
			return nil, err
		}
		if x == nil || !x.IsLeaf() || !x.RequiresGrad() || x.Tensor() == nil {
			return nil, fmt.Errorf("%w: %v is not a dense leaf that requires a gradient", ErrAlgorithm, x)
		}
		s.params = append(s.params, x)
	}
	var err error
	s.algorithm, err = args.Algorithm.updater(len(s.params))
	return s, err
}

// step changes the parameters that have a gradient in the Context of ctx.
func (s *stepper) step(ctx context.Context, _ agent.None) (agent.None, error) {
	c := FromContext(ctx)
	if c == nil {
		return agent.None{}, ErrNoContext
	}
	// As in PyTorch, the optimizers of a worker change its parameters one after the other.
	c.autograd.steps.Lock()
	defer c.autograd.steps.Unlock()
	ctx = autograd.NoGrad(ctx)
	for i, x := range s.params {
		g, err := c.Gradient(x)
		if errors.Is(err, autograd.ErrNoGradient) {
			continue
		}
		if err == nil {
			err = s.algorithm.update(ctx, i, x, g)
		}
		if err != nil {
			return agent.None{}, err
		}
	}
	return agent.None{}, nil
}
