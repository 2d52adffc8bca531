package autograd_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/autograd"
)

// torchSource makes random cases.
type torchSource struct {
	random *rand.Rand
	cases  []torchCase
}

// torchCases returns random cases of all operators.
func torchCases() []torchCase {
	s := &torchSource{random: rand.New(rand.NewPCG(18, 6))}
	for range 6 {
		s.addElements()
		s.addReductions()
		s.addProducts()
		s.addViews()
		s.addLists()
		s.addLosses()
		s.addTables()
	}
	return s.cases
}

// add adds a case.
func (s *torchSource) add(expression string, apply torchFunc, inputs ...*variable) {
	s.cases = append(s.cases, torchCase{expression, inputs, apply})
}

// size returns a size of a dimension, which is seldom 0.
func (s *torchSource) size() int { return max(s.random.IntN(6), s.random.IntN(3)) }

// shape returns a shape of that rank.
func (s *torchSource) shape(rank int) []int {
	shape := make([]int, rank)
	for i := range shape {
		shape[i] = s.size()
	}
	return shape
}

// leaf returns a Variable with elements from 0.2 to 2 that requires a gradient.
func (s *torchSource) leaf(shape ...int) *variable {
	n := 1
	for _, size := range shape {
		n *= size
	}
	data := make([]float64, n)
	for i := range data {
		data[i] = 0.2 + 1.8*s.random.Float64()
	}
	x := constant(data, shape...)
	if err := x.RequireGrad(); err != nil {
		panic(err)
	}
	return x
}

// indices returns n integers below limit.
func (s *torchSource) indices(n, limit int) []int64 {
	all := make([]int64, n)
	for i := range all {
		all[i] = s.random.Int64N(int64(limit))
	}
	return all
}

// dim returns a dimension of a tensor of that rank, which may be negative.
func (s *torchSource) dim(rank int) int { return s.random.IntN(2*rank) - rank }

// partOf returns a shape that can be broadcast to shape.
func (s *torchSource) partOf(shape []int) []int {
	part := slices.Clone(shape[s.random.IntN(len(shape)+1):])
	for i := range part {
		if s.random.IntN(3) == 0 {
			part[i] = 1
		}
	}
	return part
}

// addElements adds operators on each element.
func (s *torchSource) addElements() {
	alpha := float64(s.random.IntN(9)-4) / 2
	for name, f := range map[string]func(context.Context, *variable) (*variable, error){
		"neg": autograd.Neg, "exp": autograd.Exp, "log": autograd.Log, "sqrt": autograd.Sqrt, "sin": autograd.Sin,
		"cos": autograd.Cos, "tanh": autograd.Tanh, "sigmoid": autograd.Sigmoid, "clone": autograd.Clone,
	} {
		s.add("torch."+name+"(x[0])", list(f), s.leaf(s.shape(s.random.IntN(4))...))
	}
	s.add("torch.relu(x[0] - 1)", func(ctx context.Context, xs []*variable) (*variable, error) {
		y, err := autograd.SubNumber(ctx, xs[0], 1)
		if err != nil {
			return nil, err
		}
		return autograd.Relu(ctx, y)
	}, s.leaf(s.shape(2)...))
	for _, exponent := range []float64{0, 1, 2, 3, 0.5, -1, -2.5} {
		s.add(fmt.Sprintf("x[0] ** %g", exponent), func(ctx context.Context, xs []*variable) (*variable, error) {
			return autograd.Pow(ctx, xs[0], exponent)
		}, s.leaf(s.shape(2)...))
	}
	for sign, f := range map[string]func(context.Context, *variable, float64) (*variable, error){
		"+": autograd.AddNumber, "-": autograd.SubNumber, "*": autograd.MulNumber, "/": autograd.DivNumber,
	} {
		s.add(fmt.Sprintf("x[0] %s %g", sign, alpha), func(ctx context.Context, xs []*variable) (*variable, error) {
			return f(ctx, xs[0], alpha)
		}, s.leaf(s.shape(2)...))
	}
	for expression, f := range map[string]func(_ context.Context, x, y *variable) (*variable, error){
		"x[0] + x[1]": autograd.Add, "x[0] - x[1]": autograd.Sub, "x[0] * x[1]": autograd.Mul, "x[0] / x[1]": autograd.Div,
		fmt.Sprintf("torch.add(x[0], x[1], alpha=%g)", alpha): func(ctx context.Context, x, y *variable) (*variable, error) {
			return autograd.AddScaled(ctx, x, y, alpha)
		},
		fmt.Sprintf("torch.sub(x[0], x[1], alpha=%g)", alpha): func(ctx context.Context, x, y *variable) (*variable, error) {
			return autograd.SubScaled(ctx, x, y, alpha)
		},
	} {
		shape := s.shape(s.random.IntN(4))
		s.add(expression, pair(f), s.leaf(s.partOf(shape)...), s.leaf(s.partOf(shape)...))
	}
	for op, f := range changes {
		shape := s.shape(2)
		s.add("x[0].clone()."+op+"(x[1])", func(ctx context.Context, xs []*variable) (*variable, error) {
			y, err := autograd.Clone(ctx, xs[0])
			if err != nil {
				return nil, err
			}
			return y, f(ctx, y, xs[1])
		}, s.leaf(shape...), s.leaf(s.partOf(shape)...))
	}
}

// list returns an operator on one tensor as one on a list.
func list(f func(context.Context, *variable) (*variable, error)) torchFunc {
	return func(ctx context.Context, xs []*variable) (*variable, error) { return f(ctx, xs[0]) }
}

// pair returns an operator on two tensors as one on a list.
func pair(f func(_ context.Context, x, y *variable) (*variable, error)) torchFunc {
	return func(ctx context.Context, xs []*variable) (*variable, error) { return f(ctx, xs[0], xs[1]) }
}

// addReductions adds sums, means and softmax.
func (s *torchSource) addReductions() {
	rank := 1 + s.random.IntN(3)
	s.add("x[0].sum()", list(autograd.Sum), s.leaf(s.shape(rank)...))
	s.add("x[0].mean()", list(autograd.Mean), s.leaf(s.shape(rank)...))
	dims := s.random.Perm(rank)[:1+s.random.IntN(rank)]
	for i := range dims {
		dims[i] -= rank * s.random.IntN(2)
	}
	for name, f := range map[string]func(context.Context, *variable, []int, bool) (*variable, error){
		"sum": autograd.SumDims, "mean": autograd.MeanDims,
	} {
		for keep, yes := range map[bool]string{false: "False", true: "True"} {
			s.add(fmt.Sprintf("x[0].%s(dim=%s, keepdim=%s)", name, python(dims), yes),
				list(func(ctx context.Context, x *variable) (*variable, error) { return f(ctx, x, dims, keep) }),
				s.leaf(s.shape(rank)...))
		}
	}
	dim := s.dim(rank)
	s.add(fmt.Sprintf("x[0].softmax(%d)", dim), func(ctx context.Context, xs []*variable) (*variable, error) {
		return autograd.Softmax(ctx, xs[0], dim)
	}, s.leaf(s.shape(rank)...))
	s.add(fmt.Sprintf("x[0].log_softmax(%d)", dim), func(ctx context.Context, xs []*variable) (*variable, error) {
		return autograd.LogSoftmax(ctx, xs[0], dim)
	}, s.leaf(s.shape(rank)...))
}

// python returns numbers as a list of Python.
func python(numbers []int) string { return strings.ReplaceAll(fmt.Sprint(numbers), " ", ", ") }

// addProducts adds products of matrices, some of shapes that do not fit.
func (s *torchSource) addProducts() {
	m, k, n, b := s.size(), s.size(), s.size(), s.size()
	vectors := map[int][]int{1: {k}, 2: {m, k}, 3: {b, m, k}, 4: {2, 1, m, k}}
	others := map[int][]int{1: {k}, 2: {k, n}, 3: {b, k, n}, 4: {b, k, n}}
	for rank := 1; rank <= 4; rank++ {
		for other := 1; other <= 4; other++ {
			s.add("torch.matmul(x[0], x[1])", pair(autograd.MatMul), s.leaf(vectors[rank]...), s.leaf(others[other]...))
		}
	}
	s.add("torch.bmm(x[0], x[1])", pair(autograd.Bmm), s.leaf(b, m, k), s.leaf(b, k, n))
	for rank := 1; rank <= 3; rank++ {
		s.add("F.linear(x[0], x[1], x[2])", func(ctx context.Context, xs []*variable) (*variable, error) {
			return autograd.Linear(ctx, xs[0], xs[1], xs[2])
		}, s.leaf(vectors[rank]...), s.leaf(n, k), s.leaf(n))
		s.add("F.linear(x[0], x[1])", func(ctx context.Context, xs []*variable) (*variable, error) {
			return autograd.Linear(ctx, xs[0], xs[1], nil)
		}, s.leaf(vectors[rank]...), s.leaf(n, k))
	}
	s.add("torch.linalg.multi_dot(x)", autograd.MultiDot, s.leaf(m, k), s.leaf(k, n))
	s.add("torch.linalg.multi_dot(x)", autograd.MultiDot, s.leaf(m, k), s.leaf(k, n), s.leaf(n, b), s.leaf(b, m))
	s.add("torch.linalg.multi_dot(x)", autograd.MultiDot, s.leaf(k), s.leaf(k, n), s.leaf(n))
	s.add("torch.linalg.multi_dot(x)", autograd.MultiDot, s.leaf(m, k), s.leaf(n, k))
	s.add("torch.matmul(x[0], x[1])", pair(autograd.MatMul), s.leaf(m, k), s.leaf(n, m))
}
