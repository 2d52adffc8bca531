package autograd_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// goldenAttrs is the arguments of an operator that are not tensors, by their names in PyTorch.
type goldenAttrs map[string]any

// number returns a number, or otherwise if there is none.
func (a goldenAttrs) number(name string, otherwise float64) float64 {
	switch v := a[name].(type) {
	case float64:
		return v
	case bool:
		if v {
			return 1
		}
		return 0
	}
	return otherwise
}

// integer returns an integer, or the first one of a list, or 0 if there is none.
func (a goldenAttrs) integer(name string) int {
	if all := a.integers(name); len(all) > 0 {
		return all[0]
	}
	return 0
}

// integers returns a list of integers, which may be written as one number, or nil if there is none.
func (a goldenAttrs) integers(name string) []int {
	switch v := a[name].(type) {
	case float64:
		return []int{int(v)}
	case []any:
		all := make([]int, len(v))
		for i, e := range v {
			n, _ := e.(float64)
			all[i] = int(n)
		}
		return all
	}
	return nil
}

// text returns a text, or "" if there is none.
func (a goldenAttrs) text(name string) string {
	v, _ := a[name].(string)
	return v
}

// reduction returns that of a loss.
func (a goldenAttrs) reduction() ops.Reduction {
	switch a.text("reduction") {
	case "none":
		return ops.ReductionNone
	case "sum":
		return ops.ReductionSum
	}
	return ops.ReductionMean
}

// applyGolden applies the operator of c to args.
func applyGolden(ctx context.Context, c goldenCase, args []*variable) ([]*variable, error) {
	if c.Op == "split" {
		size := c.Attrs.integer("size")
		if size == 0 {
			size = c.Attrs.integer("split_size")
		}
		return autograd.Split(ctx, argument(args, 0), size, c.Attrs.integer("dim"))
	}
	x, err := applyGoldenOne(ctx, c, args)
	return []*variable{x}, err
}

var (
	goldenUnary = map[string]func(context.Context, *variable) (*variable, error){
		"neg": autograd.Neg, "cos": autograd.Cos, "sin": autograd.Sin, "exp": autograd.Exp, "tanh": autograd.Tanh,
		"sigmoid": autograd.Sigmoid, "relu": autograd.Relu, "log": autograd.Log, "sqrt": autograd.Sqrt,
		"t": autograd.T, "clone": autograd.Clone,
	}
	goldenBinary = map[string]func(_ context.Context, x, y *variable) (*variable, error){
		"mul": autograd.Mul, "div": autograd.Div, "matmul": autograd.MatMul, "mm": autograd.MatMul,
		"mv": autograd.MatMul, "dot": autograd.MatMul, "bmm": autograd.Bmm,
	}
	goldenNumbers = map[string]func(context.Context, *variable, float64) (*variable, error){
		"add_scalar": autograd.AddNumber, "sub_scalar": autograd.SubNumber, "mul_scalar": autograd.MulNumber,
		"div_scalar": autograd.DivNumber,
	}
	goldenViews = map[string]func(_ context.Context, x *variable, numbers ...int) (*variable, error){
		"reshape": autograd.Reshape, "view": autograd.View, "expand": autograd.Expand,
	}
	goldenDims = map[string]func(_ context.Context, x *variable, dims ...int) (*variable, error){
		"permute": autograd.Permute, "squeeze": autograd.Squeeze,
	}
	goldenReductions = map[string]func(_ context.Context, x *variable, dims []int, keep bool) (*variable, error){
		"sum": autograd.SumDims, "mean": autograd.MeanDims,
	}
)

// applyGoldenOne applies an operator that has one result.
func applyGoldenOne(ctx context.Context, c goldenCase, args []*variable) (*variable, error) {
	a, x, y := c.Attrs, argument(args, 0), argument(args, 1)
	if f := goldenUnary[c.Op]; f != nil {
		return f(ctx, x)
	}
	if f := goldenBinary[c.Op]; f != nil {
		return f(ctx, x, y)
	}
	if f := goldenNumbers[c.Op]; f != nil {
		return f(ctx, x, a.number("scalar", 0))
	}
	if f := goldenReductions[c.Op]; f != nil {
		return applyGoldenReduction(ctx, c, f, x)
	}
	switch c.Op {
	case "add":
		return autograd.AddScaled(ctx, x, y, a.number("alpha", 1))
	case "sub":
		return autograd.SubScaled(ctx, x, y, a.number("alpha", 1))
	case "pow":
		return autograd.Pow(ctx, x, a.number("exponent", 0))
	case "linear":
		return autograd.Linear(ctx, x, y, argument(args, 2))
	case "multi_dot":
		return autograd.MultiDot(ctx, args)
	case "stack":
		return autograd.Stack(ctx, args, a.integer("dim"))
	case "cat":
		return autograd.Cat(ctx, args, a.integer("dim"))
	case "chain":
		return evaluate(ctx, a.text("formula"), args)
	}
	return applyGoldenView(ctx, c, args)
}

// applyGoldenReduction applies a sum or a mean, which counts as one of all dimensions without dim.
func applyGoldenReduction(ctx context.Context, c goldenCase,
	f func(_ context.Context, x *variable, dims []int, keep bool) (*variable, error), x *variable,
) (*variable, error) {
	dims, keep := c.Attrs.integers("dim"), c.Attrs.number("keepdim", 0) != 0
	switch {
	case dims != nil || keep:
		return f(ctx, x, dims, keep)
	case c.Op == "sum":
		return autograd.Sum(ctx, x)
	}
	return autograd.Mean(ctx, x)
}

// applyGoldenView applies an operator whose result is a view.
func applyGoldenView(ctx context.Context, c goldenCase, args []*variable) (*variable, error) {
	a, x := c.Attrs, argument(args, 0)
	if f := goldenViews[c.Op]; f != nil {
		return f(ctx, x, a.integers("shape")...)
	}
	if f := goldenDims[c.Op]; f != nil {
		return f(ctx, x, append(a.integers("dim"), a.integers("dims")...)...)
	}
	switch c.Op {
	case "narrow":
		return autograd.Narrow(ctx, x, a.integer("dim"), a.integer("start"), a.integer("length"))
	case "select":
		return autograd.Select(ctx, x, a.integer("dim"), a.integer("index"))
	case "unsqueeze":
		return autograd.Unsqueeze(ctx, x, a.integer("dim"))
	case "transpose":
		return autograd.Transpose(ctx, x, a.integer("dim0"), a.integer("dim1"))
	case "transpose_reshape":
		x, err := autograd.Transpose(ctx, x, 0, 1)
		if err != nil {
			return nil, err
		}
		return autograd.Reshape(ctx, x, a.integers("shape")...)
	}
	return applyGoldenNetwork(ctx, c, args)
}

// applyGoldenNetwork applies an operator that networks consist of.
func applyGoldenNetwork(ctx context.Context, c goldenCase, args []*variable) (*variable, error) {
	a, x, y := c.Attrs, argument(args, 0), argument(args, 1)
	losses := ops.NLLOptions{Reduction: a.reduction()}
	if _, ok := a["ignore_index"]; ok {
		ignored := int64(a.integer("ignore_index"))
		losses.IgnoreIndex = &ignored
	}
	switch c.Op {
	case "softmax":
		return autograd.Softmax(ctx, x, a.integer("dim"))
	case "log_softmax":
		return autograd.LogSoftmax(ctx, x, a.integer("dim"))
	case "cross_entropy":
		return autograd.CrossEntropy(ctx, x, y, argument(args, 2), losses)
	case "nll_loss":
		return autograd.NLLLoss(ctx, x, y, argument(args, 2), losses)
	case "mse_loss":
		return autograd.MSELoss(ctx, x, y, a.reduction())
	case "embedding", "embedding_bag":
		return applyGoldenTable(ctx, c, args)
	}
	return nil, fmt.Errorf("the operator %q is not known", c.Op)
}

// applyGoldenTable applies an operator on the rows of a table. The indices and the table may be in both
// orders.
func applyGoldenTable(ctx context.Context, c goldenCase, args []*variable) (*variable, error) {
	a, indices, table := c.Attrs, argument(args, 0), argument(args, 1)
	if table != nil && table.DType() == tensor.I64 {
		indices, table = table, indices
	}
	sparse := a.number("sparse", 0) != 0
	if c.Op == "embedding" {
		return autograd.Embedding(ctx, table, indices, sparse)
	}
	b := autograd.Bags{Indices: indices, Sparse: sparse}
	if b.Options.IncludeLastOffset = a.number("include_last_offset", 0) != 0; a.text("mode") != "sum" {
		b.Options.Mode = ops.BagMean // the default
	}
	for i := 2; i < len(args); i++ {
		if args[i].DType() == tensor.I64 {
			b.Offsets = args[i]
		} else {
			b.PerSampleWeights = args[i]
		}
	}
	return autograd.EmbeddingBag(ctx, table, b)
}

// argument returns argument i, or nil if there is none.
func argument(args []*variable, i int) *variable {
	if i < len(args) {
		return args[i]
	}
	return nil
}

// evaluate returns the last value of a formula such as "t3=t1*t2; out=t3+t1", in which t1, t2, ... are
// args, and a sum has products as terms.
func evaluate(ctx context.Context, formula string, args []*variable) (last *variable, err error) {
	names := map[string]*variable{}
	for i, x := range args {
		names[fmt.Sprint("t", i+1)] = x
	}
	for _, statement := range strings.Split(formula, ";") {
		name, expression, ok := strings.Cut(statement, "=")
		if !ok {
			return nil, fmt.Errorf("%q is no statement", statement)
		}
		last = nil
		for _, term := range strings.Split(expression, "+") {
			var product *variable
			for _, factor := range strings.Split(term, "*") {
				x := names[strings.TrimSpace(factor)]
				if x == nil {
					return nil, fmt.Errorf("%q is not known", factor)
				}
				if product, err = combined(ctx, autograd.Mul, product, x); err != nil {
					return nil, err
				}
			}
			if last, err = combined(ctx, autograd.Add, last, product); err != nil {
				return nil, err
			}
		}
		names[strings.TrimSpace(name)] = last
	}
	return last, nil
}

// combined returns f of x and y, or y if x is nil.
func combined(ctx context.Context, f func(_ context.Context, x, y *variable) (*variable, error),
	x, y *variable,
) (*variable, error) {
	if x == nil {
		return y, nil
	}
	return f(ctx, x, y)
}
