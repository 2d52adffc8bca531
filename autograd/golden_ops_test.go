package autograd_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// goldenAttrs is the arguments of operators that are not tensors.
type goldenAttrs struct {
	Alpha     *float64
	Scalar    float64
	Exponent  float64
	Dim       any // a number or a list of them
	KeepDim   bool
	Start     int
	Length    int
	Index     int
	Size      int
	Dim0      int
	Dim1      int
	Shape     []int
	Reduction string
	Mode      string
	Weights   int `json:"per_sample_weights"` // the number of that argument, 0 for none
	Formula   string
}

// dims returns Dim as a list.
func (a goldenAttrs) dims() []int {
	switch d := a.Dim.(type) {
	case float64:
		return []int{int(d)}
	case []any:
		all := make([]int, len(d))
		for i, v := range d {
			all[i] = int(v.(float64))
		}
		return all
	}
	return nil
}

func (a goldenAttrs) dim() int {
	if d := a.dims(); len(d) > 0 {
		return d[0]
	}
	return 0
}

// applyGolden applies the operator of c to args.
func applyGolden(ctx context.Context, c goldenCase, args []*autograd.Variable) ([]*autograd.Variable, error) {
	if c.Op == "split" {
		return autograd.Split(ctx, args[0], c.Attrs.Size, c.Attrs.dim())
	}
	x, err := applyGoldenOne(ctx, c, args)
	return []*autograd.Variable{x}, err
}

var (
	goldenUnary = map[string]func(context.Context, *autograd.Variable) (*autograd.Variable, error){
		"neg": autograd.Neg, "cos": autograd.Cos, "sin": autograd.Sin, "exp": autograd.Exp, "tanh": autograd.Tanh,
		"sigmoid": autograd.Sigmoid, "relu": autograd.Relu, "log": autograd.Log, "sqrt": autograd.Sqrt,
	}
	goldenBinary = map[string]func(_ context.Context, x, y *autograd.Variable) (*autograd.Variable, error){
		"mul": autograd.Mul, "div": autograd.Div, "matmul": autograd.MatMul, "bmm": autograd.Bmm,
	}
	goldenReductions = map[string]ops.Reduction{"": ops.ReductionMean, "mean": ops.ReductionMean, "sum": ops.ReductionSum, "none": ops.ReductionNone}
	goldenModes      = map[string]ops.BagMode{"sum": ops.BagSum, "mean": ops.BagMean}
)

// applyGoldenOne applies an operator that has one result.
func applyGoldenOne(ctx context.Context, c goldenCase, args []*autograd.Variable) (*autograd.Variable, error) {
	a := c.Attrs
	if f := goldenUnary[c.Op]; f != nil {
		return f(ctx, args[0])
	}
	if f := goldenBinary[c.Op]; f != nil {
		return f(ctx, args[0], args[1])
	}
	alpha := 1.0
	if a.Alpha != nil {
		alpha = *a.Alpha
	}
	switch c.Op {
	case "add":
		return autograd.AddScaled(ctx, args[0], args[1], alpha)
	case "sub":
		return autograd.SubScaled(ctx, args[0], args[1], alpha)
	case "mul_scalar":
		return autograd.MulNumber(ctx, args[0], a.Scalar)
	case "add_scalar":
		return autograd.AddNumber(ctx, args[0], a.Scalar)
	case "div_scalar":
		return autograd.DivNumber(ctx, args[0], a.Scalar)
	case "pow":
		return autograd.Pow(ctx, args[0], a.Exponent)
	case "sum", "mean":
		return applyGoldenReduction(ctx, c, args[0])
	case "linear":
		return autograd.Linear(ctx, args[0], args[1], optional(args, 2))
	case "multi_dot":
		return autograd.MultiDot(ctx, args)
	case "stack":
		return autograd.Stack(ctx, args, a.dim())
	case "cat":
		return autograd.Cat(ctx, args, a.dim())
	}
	return applyGoldenView(ctx, c, args)
}

func applyGoldenReduction(ctx context.Context, c goldenCase, x *autograd.Variable) (*autograd.Variable, error) {
	dims := c.Attrs.dims()
	switch {
	case c.Op == "sum" && dims == nil:
		return autograd.Sum(ctx, x)
	case c.Op == "sum":
		return autograd.SumDims(ctx, x, dims, c.Attrs.KeepDim)
	case dims == nil:
		return autograd.Mean(ctx, x)
	}
	return autograd.MeanDims(ctx, x, dims, c.Attrs.KeepDim)
}

func applyGoldenView(ctx context.Context, c goldenCase, args []*autograd.Variable) (*autograd.Variable, error) {
	a := c.Attrs
	switch c.Op {
	case "narrow":
		return autograd.Narrow(ctx, args[0], a.dim(), a.Start, a.Length)
	case "select":
		return autograd.Select(ctx, args[0], a.dim(), a.Index)
	case "transpose":
		return autograd.Transpose(ctx, args[0], a.Dim0, a.Dim1)
	case "reshape":
		return autograd.Reshape(ctx, args[0], a.Shape...)
	case "transpose_reshape":
		x, err := autograd.Transpose(ctx, args[0], 0, 1)
		if err != nil {
			return nil, err
		}
		return autograd.Reshape(ctx, x, a.Shape...)
	case "expand":
		return autograd.Expand(ctx, args[0], a.Shape...)
	}
	return applyGoldenNetwork(ctx, c, args)
}

func applyGoldenNetwork(ctx context.Context, c goldenCase, args []*autograd.Variable) (*autograd.Variable, error) {
	a := c.Attrs
	losses := ops.NLLOptions{Reduction: goldenReductions[a.Reduction]}
	switch c.Op {
	case "softmax":
		return autograd.Softmax(ctx, args[0], a.dim())
	case "log_softmax":
		return autograd.LogSoftmax(ctx, args[0], a.dim())
	case "cross_entropy":
		return autograd.CrossEntropy(ctx, args[0], args[1], optional(args, 2), losses)
	case "nll_loss":
		return autograd.NLLLoss(ctx, args[0], args[1], optional(args, 2), losses)
	case "mse_loss":
		return autograd.MSELoss(ctx, args[0], args[1], goldenReductions[a.Reduction])
	case "embedding":
		return autograd.Embedding(ctx, args[1], args[0], false)
	case "embedding_bag":
		b := autograd.Bags{Indices: args[0], Offsets: optional(args, 2), Options: ops.BagOptions{Mode: goldenModes[a.Mode]}}
		if a.Weights > 0 {
			b.PerSampleWeights = args[a.Weights]
		}
		return autograd.EmbeddingBag(ctx, args[1], b)
	case "chain":
		return evaluate(ctx, a.Formula, args)
	}
	return nil, fmt.Errorf("the operator %q is not known", c.Op)
}

// optional returns argument i, or nil if there is none.
func optional(args []*autograd.Variable, i int) *autograd.Variable {
	if i < len(args) {
		return args[i]
	}
	return nil
}

// evaluate returns the last value of a formula such as "t3=t1*t2; out=t3+t1", in which t1, t2, ... are
// args, and a sum has products as terms.
func evaluate(ctx context.Context, formula string, args []*autograd.Variable) (last *autograd.Variable, err error) {
	names := map[string]*autograd.Variable{}
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
			var product *autograd.Variable
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
func combined(ctx context.Context, f func(_ context.Context, x, y *autograd.Variable) (*autograd.Variable, error), x, y *autograd.Variable) (*autograd.Variable, error) {
	if x == nil {
		return y, nil
	}
	return f(ctx, x, y)
}
