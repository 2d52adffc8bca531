package autograd_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// operator is an operator on n tensors. Those that change the first one change a copy, the result.
type operator struct {
	n int
	f func(ctx context.Context, xs []*variable) (*variable, error)
}

// operators are operators by the names in their errors.
type operators map[string]operator

func (all operators) unary(name string, f func(ctx context.Context, x *variable) (*variable, error)) {
	all[name] = operator{1, list(f)}
}

func (all operators) binary(name string, f func(ctx context.Context, x, y *variable) (*variable, error)) {
	all[name] = operator{2, pair(f)}
}

// allOperators returns the operators.
func allOperators() operators {
	all := operators{}
	for name, f := range map[string]func(context.Context, *variable) (*variable, error){
		"neg": autograd.Neg, "exp": autograd.Exp, "log": autograd.Log, "sqrt": autograd.Sqrt, "sin": autograd.Sin,
		"cos": autograd.Cos, "tanh": autograd.Tanh, "sigmoid": autograd.Sigmoid, "relu": autograd.Relu,
		"clone": autograd.Clone, "sum": autograd.Sum, "mean": autograd.Mean, "t": autograd.T,
		"to_dense": autograd.ToDense,
	} {
		all.unary(name, f)
	}
	for name, f := range map[string]func(_ context.Context, x, y *variable) (*variable, error){
		"add": autograd.Add, "sub": autograd.Sub, "mul": autograd.Mul, "div": autograd.Div,
		"matmul": autograd.MatMul, "bmm": autograd.Bmm,
	} {
		all.binary(name, f)
	}
	for name, f := range changes {
		all.binary(name, func(ctx context.Context, x, y *variable) (*variable, error) {
			if x != nil && x.Tensor() != nil {
				copied, err := (&ops.Engine{}).Clone(ctx, x.Tensor())
				if err != nil {
					return nil, err
				}
				x = autograd.Constant(copied)
			}
			return x, f(ctx, x, y)
		})
	}
	all.addViews()
	all.addOthers()
	return all
}

// addViews adds operators whose results are views.
func (all operators) addViews() {
	for name, f := range map[string]func(_ context.Context, x *variable, numbers ...int) (*variable, error){
		"reshape": autograd.Reshape, "view": autograd.View, "permute": autograd.Permute,
		"expand": autograd.Expand, "squeeze": autograd.Squeeze,
	} {
		numbers := map[string][]int{"reshape": {-1}, "view": {-1}, "permute": {1, 0}, "expand": {3, -1, -1}}[name]
		all.unary(name, func(ctx context.Context, x *variable) (*variable, error) { return f(ctx, x, numbers...) })
	}
	all.unary("transpose", func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Transpose(ctx, x, 0, 1)
	})
	all.unary("unsqueeze", func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Unsqueeze(ctx, x, 0)
	})
	all.unary("narrow", func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Narrow(ctx, x, 0, 0, 1)
	})
	all.unary("select", func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Select(ctx, x, 0, 0)
	})
	all.unary("split", func(ctx context.Context, x *variable) (*variable, error) {
		parts, err := autograd.Split(ctx, x, 1, 0)
		if err != nil {
			return nil, err
		}
		return parts[0], nil
	})
}

// addOthers adds operators with options, and those on lists.
func (all operators) addOthers() {
	all.unary("pow", func(ctx context.Context, x *variable) (*variable, error) { return autograd.Pow(ctx, x, 2) })
	all.unary("softmax", func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Softmax(ctx, x, 0)
	})
	all.unary("log_softmax", func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.LogSoftmax(ctx, x, 0)
	})
	all["multi_dot"] = operator{3, autograd.MultiDot}
	all.binary("stack", func(ctx context.Context, x, y *variable) (*variable, error) {
		return autograd.Stack(ctx, []*variable{x, y}, 0)
	})
	all.binary("cat", func(ctx context.Context, x, y *variable) (*variable, error) {
		return autograd.Cat(ctx, []*variable{x, y}, 0)
	})
	all.binary("linear", func(ctx context.Context, x, y *variable) (*variable, error) {
		return autograd.Linear(ctx, x, y, nil)
	})
	all.binary("nll_loss", func(ctx context.Context, x, y *variable) (*variable, error) {
		return autograd.NLLLoss(ctx, x, y, nil, ops.NLLOptions{})
	})
	all.binary("cross_entropy", func(ctx context.Context, x, y *variable) (*variable, error) {
		return autograd.CrossEntropy(ctx, x, y, nil, ops.NLLOptions{})
	})
	all.binary("mse_loss", func(ctx context.Context, x, y *variable) (*variable, error) {
		return autograd.MSELoss(ctx, x, y, ops.ReductionMean)
	})
	all.binary("embedding", func(ctx context.Context, x, y *variable) (*variable, error) {
		return autograd.Embedding(ctx, x, y, false)
	})
	all.binary("embedding_bag", func(ctx context.Context, x, y *variable) (*variable, error) {
		return autograd.EmbeddingBag(ctx, x, autograd.Bags{Indices: y})
	})
}

// TestArguments checks that no argument makes an operator panic, and that the errors name it.
func TestArguments(t *testing.T) {
	readOnly := leaf(t, []float64{1, 2, 3, 4}, 2, 2)
	readOnly.Tensor().Storage().SetReadOnly(true)
	expanded, err := constant([]float64{1}, 1, 1).Tensor().Expand(2, 2)
	require.NoError(t, err)
	repeated, err := autograd.Parameter(expanded)
	require.NoError(t, err)
	wide, err := constant([]float64{1}, 1).Tensor().Expand(1<<8, 1<<10)
	require.NoError(t, err)
	arguments := []*variable{
		nil, new(variable), autograd.Constant(nil), sparseLeaf(t, 1, 2, 3), leaf(t, []float64{1}), leaf(t, nil, 0),
		leaf(t, nil, 2, 0), leaf(t, []float64{1, 2}, 2), leaf(t, []float64{1, 2, 3, 4}, 2, 2),
		leaf(t, make([]float64, 8), 2, 2, 2), readOnly, repeated,
		integers([]int64{-1, 1 << 40}, 2), integers([]int64{1, 0, 1, 0}, 2, 2), autograd.Constant(tensor.Scalar(true)),
		autograd.Constant(tensor.Scalar(complex64(1))), cast(t, leaf(t, []float64{1, 2}, 2), tensor.F16),
		autograd.Constant(tensor.Scalar(uint8(200))), autograd.Constant(wide),
	}
	ctx := autograd.WithEngine(t.Context(), &ops.Engine{MaxBytes: 1 << 20})
	for name, o := range allOperators() {
		t.Run(name, func(t *testing.T) {
			check := func(xs ...*variable) {
				y, err := o.f(ctx, xs)
				for _, x := range xs {
					if x == nil || x.Value().IsZero() {
						require.True(t, errors.Is(err, autograd.ErrNoTensor) || errors.Is(err, autograd.ErrSparse), "%v", err)
					}
				}
				var failed *autograd.OpError
				if err != nil {
					require.ErrorAs(t, err, &failed)
					require.Equal(t, name, failed.Op)
				} else if y.RequiresGrad() {
					if err := autograd.Backward(ctx, []*variable{y}, autograd.WithGradients(y.Value())); err != nil {
						require.ErrorAs(t, err, &failed)
						require.Equal(t, y.Node().Name(), failed.Op)
					}
				}
			}
			for _, x := range arguments {
				if o.n == 1 {
					check(x)
					continue
				}
				for _, y := range arguments {
					check(append([]*variable{x, y}, arguments[8:][:o.n-2]...)...)
				}
			}
		})
	}
}

// TestOptionalArguments checks the errors for arguments that may be nil, and for lists.
func TestOptionalArguments(t *testing.T) {
	ctx := t.Context()
	x, target, none := leaf(t, make([]float64, 4), 2, 2), integers([]int64{1, 0}, 2), new(variable)
	for name, f := range map[string]func() (*variable, error){
		"linear":   func() (*variable, error) { return autograd.Linear(ctx, x, x, none) },
		"nll_loss": func() (*variable, error) { return autograd.NLLLoss(ctx, x, target, none, ops.NLLOptions{}) },
		"cross_entropy": func() (*variable, error) {
			return autograd.CrossEntropy(ctx, x, target, none, ops.NLLOptions{})
		},
		"embedding_bag": func() (*variable, error) {
			return autograd.EmbeddingBag(ctx, x, autograd.Bags{Indices: target, Offsets: none})
		},
	} {
		_, err := f()
		require.ErrorIs(t, err, autograd.ErrNoTensor)
		require.ErrorContains(t, err, "autograd: "+name+": ")
	}
	for name, f := range map[string]func(xs []*variable) (*variable, error){
		"cat":       func(xs []*variable) (*variable, error) { return autograd.Cat(ctx, xs, 0) },
		"stack":     func(xs []*variable) (*variable, error) { return autograd.Stack(ctx, xs, 0) },
		"multi_dot": func(xs []*variable) (*variable, error) { return autograd.MultiDot(ctx, xs) },
	} {
		for _, xs := range [][]*variable{nil, {nil}, {x, nil}} {
			_, err := f(xs)
			require.ErrorContains(t, err, "autograd: "+name+": ")
		}
	}
	_, err := autograd.EmbeddingBag(ctx, x, autograd.Bags{})
	require.ErrorIs(t, err, autograd.ErrNoTensor)
}
