package dist

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// differentiable returns a copy of table in which operators that package autograd has also take
// Variables, and lists of them. The result of an operator on Variables is one.
func differentiable(table *aten.Table) (*aten.Table, error) {
	table = table.Clone()
	for name, f := range operators {
		all, err := table.Lookup(name)
		if err != nil {
			continue // the application has left it out
		}
		op := *all[0]
		plain := op.Kernel
		op.Kernel = func(ctx context.Context, args []aten.Value) ([]aten.Value, error) {
			if !hasVariable(args) {
				return plain(ctx, args)
			}
			results, err := f(ctx, arguments(args))
			if err != nil {
				return nil, fmt.Errorf("%w (%s)", err, name)
			}
			out := make([]aten.Value, len(results))
			for i, x := range results {
				out[i] = x
			}
			if name == "aten::split.Tensor" {
				return []aten.Value{results}, nil
			}
			return out, nil
		}
		op.Tensorlike = isVariable
		if err := table.Replace(op); err != nil {
			return nil, err
		}
	}
	return table, nil
}

// isVariable reports whether v is a Variable, or a list of them.
func isVariable(v aten.Value) bool {
	switch v := v.(type) {
	case *autograd.Variable:
		return v != nil
	case []*autograd.Variable:
		for _, x := range v {
			if x == nil {
				return false
			}
		}
		return true
	}
	return false
}

func hasVariable(args []aten.Value) bool {
	for _, v := range args {
		if isVariable(v) {
			return true
		}
	}
	return false
}

// arguments are the arguments of an operator, in the form that kernels get.
type arguments []aten.Value

// variable returns argument i as a Variable, or nil if it is not given.
func (a arguments) variable(i int) *autograd.Variable {
	switch v := a[i].(type) {
	case *autograd.Variable:
		return v
	case *tensor.Tensor:
		return autograd.Constant(v)
	case *tensor.Sparse:
		return autograd.New(autograd.Sparse(v))
	}
	return nil
}

// variables returns argument i, a list.
func (a arguments) variables(i int) []*autograd.Variable {
	switch v := a[i].(type) {
	case []*autograd.Variable:
		return v
	case []*tensor.Tensor:
		all := make([]*autograd.Variable, len(v))
		for i, t := range v {
			all[i] = autograd.Constant(t)
		}
		return all
	}
	return nil
}

// float returns argument i, a number.
func (a arguments) float(i int) float64 {
	switch v := a[i].(type) {
	case int64:
		return float64(v)
	case float64:
		return v
	case bool:
		if v {
			return 1
		}
	}
	return 0
}

func (a arguments) int(i int) int {
	n, _ := a[i].(int64)
	return int(n)
}

func (a arguments) bool(i int) bool {
	v, _ := a[i].(bool)
	return v
}

func (a arguments) ints(i int) []int {
	list, _ := a[i].([]int64)
	all := make([]int, len(list))
	for i, n := range list {
		all[i] = int(n)
	}
	return all
}

// withoutDType returns an error if argument i, the dtype of the result, is given.
func (a arguments) withoutDType(i int) error {
	if a[i] != nil {
		return fmt.Errorf("%w: the dtype of a result cannot be chosen", autograd.ErrNoGradient)
	}
	return nil
}

type operator func(ctx context.Context, a arguments) ([]*autograd.Variable, error)

// one returns x as the results of an operator.
func one(x *autograd.Variable, err error) ([]*autograd.Variable, error) {
	if err != nil {
		return nil, err
	}
	return []*autograd.Variable{x}, nil
}

func ofOne(f func(context.Context, *autograd.Variable) (*autograd.Variable, error)) operator {
	return func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(f(ctx, a.variable(0)))
	}
}

func ofTwo(f func(_ context.Context, x, y *autograd.Variable) (*autograd.Variable, error)) operator {
	return func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(f(ctx, a.variable(0), a.variable(1)))
	}
}

func withNumber(f func(context.Context, *autograd.Variable, float64) (*autograd.Variable, error)) operator {
	return func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(f(ctx, a.variable(0), a.float(1)))
	}
}

// operators are the operators by their names with the overload.
var operators = map[string]operator{
	"aten::add.Tensor": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(autograd.AddScaled(ctx, a.variable(0), a.variable(1), a.float(2)))
	},
	"aten::sub.Tensor": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(autograd.SubScaled(ctx, a.variable(0), a.variable(1), a.float(2)))
	},
	"aten::add.Scalar": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(autograd.AddNumber(ctx, a.variable(0), a.float(1)*a.float(2)))
	},
	"aten::sub.Scalar": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(autograd.AddNumber(ctx, a.variable(0), -a.float(1)*a.float(2)))
	},
	"aten::mul.Tensor": ofTwo(autograd.Mul), "aten::mul.Scalar": withNumber(autograd.MulNumber),
	"aten::div.Tensor": ofTwo(autograd.Div), "aten::div.Scalar": withNumber(autograd.DivNumber),
	"aten::pow.Tensor_Scalar": withNumber(autograd.Pow),
	"aten::neg":               ofOne(autograd.Neg), "aten::relu": ofOne(autograd.Relu), "aten::exp": ofOne(autograd.Exp),
	"aten::log": ofOne(autograd.Log), "aten::sqrt": ofOne(autograd.Sqrt), "aten::sin": ofOne(autograd.Sin),
	"aten::cos": ofOne(autograd.Cos), "aten::tanh": ofOne(autograd.Tanh), "aten::sigmoid": ofOne(autograd.Sigmoid),
	"aten::clone": ofOne(autograd.Clone), "aten::_sparse_sum": ofOne(autograd.Sum),
	"aten::mm": ofTwo(autograd.MatMul), "aten::mv": ofTwo(autograd.MatMul), "aten::dot": ofTwo(autograd.MatMul),
	"aten::matmul": ofTwo(autograd.MatMul), "aten::bmm": ofTwo(autograd.Bmm),
	"aten::linear": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(autograd.Linear(ctx, a.variable(0), a.variable(1), a.variable(2)))
	},
	"aten::linalg_multi_dot": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(autograd.MultiDot(ctx, a.variables(0)))
	},
	"aten::sum": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		if err := a.withoutDType(1); err != nil {
			return nil, err
		}
		return one(autograd.Sum(ctx, a.variable(0)))
	},
	"aten::mean": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		if err := a.withoutDType(1); err != nil {
			return nil, err
		}
		return one(autograd.Mean(ctx, a.variable(0)))
	},
	"aten::sum.dim_IntList": reduction(autograd.SumDims), "aten::mean.dim": reduction(autograd.MeanDims),
	"aten::softmax.int": alongDim(autograd.Softmax), "aten::log_softmax.int": alongDim(autograd.LogSoftmax),
	"aten::t": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		x := a.variable(0)
		if len(x.Shape()) < 2 {
			return []*autograd.Variable{x}, nil
		}
		return one(autograd.Transpose(ctx, x, 0, 1))
	},
	"aten::transpose.int": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(autograd.Transpose(ctx, a.variable(0), a.int(1), a.int(2)))
	},
	"aten::reshape": withShape(autograd.Reshape), "aten::view": withShape(autograd.View), "aten::expand": withShape(autograd.Expand),
	"aten::select.int": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(autograd.Select(ctx, a.variable(0), a.int(1), a.int(2)))
	},
	"aten::narrow": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(autograd.Narrow(ctx, a.variable(0), a.int(1), a.int(2), a.int(3)))
	},
	"aten::split.Tensor": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return autograd.Split(ctx, a.variable(0), a.int(1), a.int(2))
	},
	"aten::cat": joined(autograd.Cat), "aten::stack": joined(autograd.Stack),
	"aten::to_dense": func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		if err := a.withoutDType(1); err != nil {
			return nil, err
		}
		return one(autograd.ToDense(ctx, a.variable(0)))
	},
}

func reduction(f func(_ context.Context, x *autograd.Variable, dims []int, keep bool) (*autograd.Variable, error)) operator {
	return func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		if err := a.withoutDType(3); err != nil {
			return nil, err
		}
		return one(f(ctx, a.variable(0), a.ints(1), a.bool(2)))
	}
}

func alongDim(f func(_ context.Context, x *autograd.Variable, dim int) (*autograd.Variable, error)) operator {
	return func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		if err := a.withoutDType(2); err != nil {
			return nil, err
		}
		return one(f(ctx, a.variable(0), a.int(1)))
	}
}

func withShape(f func(_ context.Context, x *autograd.Variable, shape ...int) (*autograd.Variable, error)) operator {
	return func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(f(ctx, a.variable(0), a.ints(1)...))
	}
}

func joined(f func(_ context.Context, xs []*autograd.Variable, dim int) (*autograd.Variable, error)) operator {
	return func(ctx context.Context, a arguments) ([]*autograd.Variable, error) {
		return one(f(ctx, a.variables(0), a.int(1)))
	}
}
