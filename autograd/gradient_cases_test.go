package autograd_test

import (
	"context"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/autograd"
)

type (
	variable = autograd.Variable
	listFunc = func(ctx context.Context, xs []*variable) ([]*variable, error)
)

// both returns the case of f for arguments of the shapes plain, and for those of the shapes empty.
func both(name string, f listFunc, plain, empty [][]int) gradientCase {
	return gradientCase{name, operands{plain, f}, operands{empty, f}}
}

// one returns an operator on one tensor as a function of a list.
func one(f func(ctx context.Context, x *variable) (*variable, error)) listFunc {
	return func(ctx context.Context, xs []*variable) ([]*variable, error) {
		y, err := f(ctx, xs[0])
		return []*variable{y}, err
	}
}

// two returns an operator on two tensors as a function of a list.
func two(f func(ctx context.Context, x, y *variable) (*variable, error)) listFunc {
	return func(ctx context.Context, xs []*variable) ([]*variable, error) {
		y, err := f(ctx, xs[0], xs[1])
		return []*variable{y}, err
	}
}

// many returns an operator on a list, as a function with a list of results.
func many(f func(ctx context.Context, xs []*variable) (*variable, error)) listFunc {
	return func(ctx context.Context, xs []*variable) ([]*variable, error) {
		y, err := f(ctx, xs)
		return []*variable{y}, err
	}
}

// shapes returns its arguments.
func shapes(all ...[]int) [][]int { return all }

// withEmpty returns the case of f for arguments of the shapes plain, and for those with 0 as first size.
func withEmpty(name string, f listFunc, plain ...[]int) gradientCase {
	empty := make([][]int, len(plain))
	for i, shape := range plain {
		empty[i] = slices.Clone(shape)
		empty[i][0] = 0
	}
	return both(name, f, plain, empty)
}

// gradientCases returns the operators whose gradients TestGradients checks.
func gradientCases() []gradientCase {
	return slices.Concat(elementCases(), numberCases(), reductionCases(), productCases(), viewCases(), listCases(),
		inPlaceCases(), classCases(), tableCases())
}

// elementCases returns operators on each element.
func elementCases() (all []gradientCase) {
	for name, f := range map[string]func(context.Context, *variable) (*variable, error){
		"neg": autograd.Neg, "exp": autograd.Exp, "log": autograd.Log, "sqrt": autograd.Sqrt,
		"sin": autograd.Sin, "cos": autograd.Cos, "tanh": autograd.Tanh, "sigmoid": autograd.Sigmoid, "relu": autograd.Relu,
		"clone": autograd.Clone,
		"relu of negative": func(ctx context.Context, x *variable) (*variable, error) {
			y, err := autograd.SubNumber(ctx, x, 1.01)
			if err != nil {
				return nil, err
			}
			return autograd.Relu(ctx, y)
		},
		"square": func(ctx context.Context, x *variable) (*variable, error) { return autograd.Mul(ctx, x, x) },
	} {
		all = append(all, withEmpty(name, one(f), []int{2, 3}), withEmpty(name+" of rank 3", one(f), []int{2, 3, 2}))
	}
	for name, f := range map[string]func(_ context.Context, x, y *variable) (*variable, error){
		"add": autograd.Add, "sub": autograd.Sub, "mul": autograd.Mul,
		"div": func(ctx context.Context, x, y *variable) (*variable, error) { return autograd.Div(ctx, y, x) },
		"add scaled": func(ctx context.Context, x, y *variable) (*variable, error) {
			return autograd.AddScaled(ctx, x, y, 2.5)
		},
		"sub scaled": func(ctx context.Context, x, y *variable) (*variable, error) {
			return autograd.SubScaled(ctx, x, y, -3)
		},
	} {
		all = append(all, withEmpty(name, two(f), []int{2, 3}, []int{2, 3}),
			both(name+" with one row", two(f), shapes([]int{2, 3}, []int{3}), shapes([]int{0, 3}, []int{3})),
			both(name+" to rank 3", two(f), shapes([]int{2, 1, 3}, []int{4, 1}), shapes([]int{2, 1, 0}, []int{4, 1})),
			both(name+" with a scalar", two(f), shapes([]int{}, []int{3, 2}), shapes([]int{}, []int{0, 2})))
	}
	return all
}

// numberCases returns operators on each element and a number.
func numberCases() (all []gradientCase) {
	for name, f := range map[string]func(context.Context, *variable, float64) (*variable, error){
		"pow": autograd.Pow, "add": autograd.AddNumber, "sub": autograd.SubNumber,
		"mul": autograd.MulNumber, "div": autograd.DivNumber,
	} {
		for _, v := range []float64{2.5, 2, 1, -1, 0} {
			if name == "div" && v == 0 {
				continue
			}
			apply := one(func(ctx context.Context, x *variable) (*variable, error) { return f(ctx, x, v) })
			all = append(all, withEmpty(fmt.Sprintf("%s of the number %g", name, v), apply, []int{2, 3}))
		}
	}
	return all
}

// reductionCases returns sums, means and softmax.
func reductionCases() (all []gradientCase) {
	type reduction = func(ctx context.Context, x *variable, dims []int, keep bool) (*variable, error)
	all = append(all, withEmpty("sum", one(autograd.Sum), []int{2, 3}),
		withEmpty("mean", one(autograd.Mean), []int{2, 3}))
	for name, f := range map[string]reduction{"sum": autograd.SumDims, "mean": autograd.MeanDims} {
		for _, keep := range []bool{false, true} {
			for _, dims := range [][]int{{0}, {1}, {-1}, {0, 2}, {2, 0}, {-1, 0, 1}, {}} {
				apply := func(ctx context.Context, x *variable) (*variable, error) { return f(ctx, x, dims, keep) }
				all = append(all, withEmpty(name+" over dimensions", one(apply), []int{2, 3, 4}))
			}
		}
	}
	for _, dim := range []int{0, 1, -1, -2} {
		softmax := func(ctx context.Context, x *variable) (*variable, error) { return autograd.Softmax(ctx, x, dim) }
		logSoftmax := func(ctx context.Context, x *variable) (*variable, error) {
			return autograd.LogSoftmax(ctx, x, dim)
		}
		all = append(all, withEmpty("softmax", one(softmax), []int{3, 4}),
			withEmpty("log_softmax", one(logSoftmax), []int{3, 4}))
	}
	return all
}

// productCases returns products of matrices.
func productCases() []gradientCase {
	matMul, multiDot := two(autograd.MatMul), many(autograd.MultiDot)
	var all []gradientCase
	add := func(name string, f listFunc, plain, empty [][]int) { all = append(all, both(name, f, plain, empty)) }
	add("matmul of vectors", matMul, shapes([]int{3}, []int{3}), shapes([]int{0}, []int{0}))
	add("matmul of vector and matrix", matMul, shapes([]int{3}, []int{3, 2}), shapes([]int{0}, []int{0, 2}))
	add("matmul of matrix and vector", matMul, shapes([]int{2, 3}, []int{3}), shapes([]int{0, 3}, []int{3}))
	add("matmul of matrices", matMul, shapes([]int{2, 3}, []int{3, 4}), shapes([]int{0, 3}, []int{3, 4}))
	add("matmul without inner dimension", matMul,
		shapes([]int{2, 1}, []int{1, 4}), shapes([]int{2, 0}, []int{0, 4}))
	add("matmul of ranks 3 and 2", matMul,
		shapes([]int{2, 2, 3}, []int{3, 4}), shapes([]int{0, 2, 3}, []int{3, 4}))
	add("matmul of ranks 2 and 3", matMul,
		shapes([]int{2, 3}, []int{2, 3, 4}), shapes([]int{2, 3}, []int{0, 3, 4}))
	add("matmul of ranks 3 and 3", matMul,
		shapes([]int{2, 2, 3}, []int{2, 3, 4}), shapes([]int{2, 0, 3}, []int{2, 3, 4}))
	add("matmul of broadcast batches", matMul,
		shapes([]int{2, 1, 2, 3}, []int{4, 3, 2}), shapes([]int{0, 1, 2, 3}, []int{4, 3, 2}))
	add("matmul of ranks 1 and 3", matMul, shapes([]int{3}, []int{2, 3, 4}), shapes([]int{3}, []int{0, 3, 4}))
	add("matmul of ranks 3 and 1", matMul, shapes([]int{2, 4, 3}, []int{3}), shapes([]int{0, 4, 3}, []int{3}))
	add("bmm", two(autograd.Bmm),
		shapes([]int{2, 2, 3}, []int{2, 3, 4}), shapes([]int{0, 2, 3}, []int{0, 3, 4}))
	linear := many(func(ctx context.Context, xs []*variable) (*variable, error) {
		return autograd.Linear(ctx, xs[0], xs[1], xs[2])
	})
	add("linear", linear,
		shapes([]int{2, 3}, []int{4, 3}, []int{4}), shapes([]int{0, 3}, []int{4, 3}, []int{4}))
	add("linear of a vector", linear,
		shapes([]int{3}, []int{4, 3}, []int{4}), shapes([]int{0}, []int{4, 0}, []int{4}))
	add("linear of rank 3", linear,
		shapes([]int{2, 2, 3}, []int{4, 3}, []int{4}), shapes([]int{2, 0, 3}, []int{4, 3}, []int{4}))
	noBias := two(func(ctx context.Context, x, w *variable) (*variable, error) {
		return autograd.Linear(ctx, x, w, nil)
	})
	add("linear without bias", noBias, shapes([]int{2, 3}, []int{4, 3}), shapes([]int{0, 3}, []int{4, 3}))
	add("multi_dot of 2", multiDot, shapes([]int{2, 3}, []int{3, 4}), shapes([]int{0, 3}, []int{3, 4}))
	add("multi_dot of 4", multiDot,
		shapes([]int{2, 3}, []int{3, 4}, []int{4, 2}, []int{2, 3}),
		shapes([]int{2, 3}, []int{3, 0}, []int{0, 2}, []int{2, 3}))
	add("multi_dot with vectors", multiDot,
		shapes([]int{3}, []int{3, 4}, []int{4}), shapes([]int{3}, []int{3, 0}, []int{0}))
	return all
}
