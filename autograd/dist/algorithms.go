package dist

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// Algorithm is how an Optimizer changes parameters: SGD, Adam or Adagrad.
type Algorithm interface {
	// updater returns the state for n parameters. The error matches ErrAlgorithm.
	updater(n int) (updater, error)
}

// updater changes parameters. It is not used concurrently.
type updater interface {
	// update changes x, the parameter with number i, by its gradient g.
	update(ctx context.Context, i int, x *autograd.Variable, g autograd.Value) error
}

// SGD is stochastic gradient descent: it subtracts LR times the gradient, to which WeightDecay times the
// parameter is added. With Momentum, the gradient is replaced by a running sum, which is multiplied by
// Momentum in each step. A sparse gradient changes only the elements that it lists, if there is neither
// Momentum nor WeightDecay, and otherwise is taken as a dense one.
type SGD struct {
	LR, Momentum, WeightDecay float64
}

func (a SGD) updater(n int) (updater, error) {
	if !(a.LR >= 0 && a.Momentum >= 0 && a.WeightDecay >= 0) {
		return nil, fmt.Errorf("%w: SGD with LR %g, Momentum %g, WeightDecay %g", ErrAlgorithm, a.LR, a.Momentum, a.WeightDecay)
	}
	return &sgdState{SGD: a, sums: make([]*tensor.Tensor, n)}, nil
}

type sgdState struct {
	SGD
	sums []*tensor.Tensor
}

func (s *sgdState) update(ctx context.Context, i int, x *autograd.Variable, g autograd.Value) error {
	if s.Momentum == 0 && s.WeightDecay == 0 {
		return autograd.AddInPlace(ctx, x, autograd.New(g), -s.LR)
	}
	grad, err := decayed(ctx, x, g, s.WeightDecay)
	if err != nil {
		return err
	}
	if s.Momentum != 0 {
		e := autograd.EngineOf(ctx)
		if sum := s.sums[i]; sum == nil {
			if s.sums[i], err = e.Clone(ctx, grad); err != nil {
				return err
			}
		} else {
			if err := e.MulNumberInPlace(ctx, sum, ops.Float(s.Momentum)); err != nil {
				return err
			}
			if err := e.AddInPlace(ctx, sum, grad, ops.Int(1)); err != nil {
				return err
			}
		}
		grad = s.sums[i]
	}
	return autograd.AddInPlace(ctx, x, autograd.Constant(grad), -s.LR)
}

// decayed returns the gradient g, as a dense tensor, plus decay times x.
func decayed(ctx context.Context, x *autograd.Variable, g autograd.Value, decay float64) (*tensor.Tensor, error) {
	t, err := g.ToDense()
	if err != nil || decay == 0 {
		return t, err
	}
	return autograd.EngineOf(ctx).Add(ctx, t, x.Tensor(), ops.Float(decay))
}

// Adam is the algorithm of Kingma and Ba. Zero values of Beta1, Beta2 and Eps stand for 0.9, 0.999 and
// 1e-8. Sparse gradients are taken as dense ones.
type Adam struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
}

func (a Adam) updater(n int) (updater, error) {
	a.Beta1, a.Beta2, a.Eps = cmp.Or(a.Beta1, 0.9), cmp.Or(a.Beta2, 0.999), cmp.Or(a.Eps, 1e-8)
	if !(a.LR >= 0 && a.Beta1 >= 0 && a.Beta1 < 1 && a.Beta2 >= 0 && a.Beta2 < 1 && a.Eps > 0 && a.WeightDecay >= 0) {
		return nil, fmt.Errorf("%w: %+v", ErrAlgorithm, a)
	}
	return &adamState{Adam: a, steps: make([]float64, n), means: make([]*tensor.Tensor, n), squares: make([]*tensor.Tensor, n)}, nil
}

type adamState struct {
	Adam
	steps          []float64 // of each parameter
	means, squares []*tensor.Tensor
}

func (s *adamState) update(ctx context.Context, i int, x *autograd.Variable, g autograd.Value) error {
	grad, err := decayed(ctx, x, g, s.WeightDecay)
	if err != nil {
		return err
	}
	e := autograd.EngineOf(ctx)
	if s.means[i] == nil {
		if s.means[i], err = zerosLike(ctx, x); err != nil {
			return err
		}
		if s.squares[i], err = zerosLike(ctx, x); err != nil {
			return err
		}
	}
	s.steps[i]++
	if err := average(ctx, s.means[i], grad, s.Beta1); err != nil {
		return err
	}
	square, err := e.Mul(ctx, grad, grad)
	if err != nil {
		return err
	}
	if err := average(ctx, s.squares[i], square, s.Beta2); err != nil {
		return err
	}
	root, err := e.DivNumber(ctx, s.squares[i], ops.Float(1-math.Pow(s.Beta2, s.steps[i])))
	if err != nil {
		return err
	}
	return stepBy(ctx, x, s.means[i], root, s.Eps, s.LR/(1-math.Pow(s.Beta1, s.steps[i])))
}

// zerosLike returns zeros with the dtype and the shape of x, on its device.
func zerosLike(ctx context.Context, x *autograd.Variable) (*tensor.Tensor, error) {
	return autograd.EngineOf(ctx).FullOn(ctx, x.Value().Device(), x.DType(), ops.Int(0), x.Shape()...)
}

// average sets mean to beta*mean + (1-beta)*t.
func average(ctx context.Context, mean, t *tensor.Tensor, beta float64) error {
	e := autograd.EngineOf(ctx)
	if err := e.MulNumberInPlace(ctx, mean, ops.Float(beta)); err != nil {
		return err
	}
	return e.AddInPlace(ctx, mean, t, ops.Float(1-beta))
}

// stepBy subtracts lr*direction/(sqrt(squares)+eps) from x.
func stepBy(ctx context.Context, x *autograd.Variable, direction, squares *tensor.Tensor, eps, lr float64) error {
	e := autograd.EngineOf(ctx)
	root, err := e.Sqrt(ctx, squares)
	if err != nil {
		return err
	}
	if root, err = e.AddNumber(ctx, root, ops.Float(eps), ops.Int(1)); err != nil {
		return err
	}
	step, err := e.Div(ctx, direction, root)
	if err != nil {
		return err
	}
	return autograd.AddInPlace(ctx, x, autograd.Constant(step), -lr)
}

// Adagrad divides the gradient by the root of the sum of its squares so far. A zero value of Eps stands
// for 1e-10. Sparse gradients are taken as dense ones.
type Adagrad struct {
	LR, Eps, WeightDecay float64
}

func (a Adagrad) updater(n int) (updater, error) {
	a.Eps = cmp.Or(a.Eps, 1e-10)
	if !(a.LR >= 0 && a.Eps > 0 && a.WeightDecay >= 0) {
		return nil, fmt.Errorf("%w: %+v", ErrAlgorithm, a)
	}
	return &adagradState{Adagrad: a, squares: make([]*tensor.Tensor, n)}, nil
}

type adagradState struct {
	Adagrad
	squares []*tensor.Tensor
}

func (s *adagradState) update(ctx context.Context, i int, x *autograd.Variable, g autograd.Value) error {
	grad, err := decayed(ctx, x, g, s.WeightDecay)
	if err != nil {
		return err
	}
	e := autograd.EngineOf(ctx)
	square, err := e.Mul(ctx, grad, grad)
	if err != nil {
		return err
	}
	if s.squares[i] == nil {
		s.squares[i] = square
	} else if err := e.AddInPlace(ctx, s.squares[i], square, ops.Int(1)); err != nil {
		return err
	}
	return stepBy(ctx, x, grad, s.squares[i], s.Eps, s.LR)
}
