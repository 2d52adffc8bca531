package aten_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// caller collects the calls to compare.
type caller struct {
	*testing.T
	r     *rand.Rand
	calls []torchCall
}

func (c *caller) call(name string, args ...aten.Value) { c.named(nil, name, args...) }

// fails adds to c.calls a call of aten::name with args. If PyTorch fails, the text of the error
// here must contain PyTorch's.
func (c *caller) fails(name string, args ...aten.Value) {
	c.calls = append(c.calls, torchCall{name: "aten::" + name, args: args, exact: true})
}

func (c *caller) named(named map[string]aten.Value, name string, args ...aten.Value) {
	bools := named["alpha"] == true
	for _, v := range args[1:] {
		bools = bools || v == true && functions[name]
	}
	c.calls = append(c.calls, torchCall{name: "aten::" + name, args: args, named: named, bools: bools})
}

// functions are the operators that take a Scalar, which may be a bool.
var functions = map[string]bool{
	"add.Scalar": true, "sub.Scalar": true, "mul.Scalar": true, "div.Scalar": true, "eq.Scalar": true, "ne.Scalar": true,
	"lt.Scalar": true, "le.Scalar": true, "gt.Scalar": true, "ge.Scalar": true, "pow.Tensor_Scalar": true, "full": true,
}

// nonzeroTensor returns a new tensor of random numbers. If d is complex it has no zeros, since
// PyTorch's results of dividing complex numbers by zero follow no rule.
func (c *caller) nonzeroTensor(d tensor.DType, shape ...int) *tensor.Tensor {
	if d < tensor.C64 {
		return c.x(d, shape...)
	}
	out, err := table.Call(c.Context(), "aten::add", []aten.Value{c.x(d, shape...), int64(5)}, nil)
	require.NoError(c, err)
	return out[0].(*tensor.Tensor)
}

func (c *caller) x(d tensor.DType, shape ...int) *tensor.Tensor { return random(c.T, c.r, d, shape...) }

type named = map[string]aten.Value

func torchCalls(t *testing.T) []torchCall {
	t.Helper()
	c := &caller{T: t, r: rand.New(rand.NewPCG(1, 2))}
	c.pairs()
	c.scalars()
	c.shapes()
	c.functions()
	c.creations()
	c.views()
	c.joins()
	c.reductions()
	c.products()
	c.sparse()
	return c.calls
}

var binaryOps = []string{"add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge"}

// pairs adds to c.calls the arithmetic and comparisons of two tensors for all pairs of dtypes, with
// and without dimensions.
func (c *caller) pairs() {
	for _, a := range allDTypes {
		for _, b := range allDTypes {
			for _, op := range binaryOps {
				if order := op[0] == 'l' || op[0] == 'g'; order && (a > tensor.F64 || b > tensor.F64) {
					continue
				}
				if op == "div" && a > tensor.F64 && b <= tensor.F64 {
					continue // see nonzeroTensor
				}
				c.call(op+".Tensor", c.x(a, 2, 3), c.nonzeroTensor(b, 3))
				if op == "add" || op == "div" || op == "lt" { // the others promote dtypes in the same way
					c.call(op+".Tensor", c.x(a, 2, 3), c.nonzeroTensor(b))
					c.call(op+".Tensor", c.x(a), c.nonzeroTensor(b, 4))
					c.call(op+".Tensor", c.x(a), c.nonzeroTensor(b))
				}
			}
		}
	}
}

// scalars adds to c.calls the arithmetic, comparisons and powers of a tensor and a number, for all
// dtypes.
func (c *caller) scalars() {
	for _, d := range allDTypes {
		for _, v := range []aten.Value{true, int64(3), int64(-2), 2.5} {
			for _, op := range binaryOps {
				if order := op[0] == 'l' || op[0] == 'g'; order && d > tensor.F64 {
					continue
				}
				c.call(op+".Scalar", c.x(d, 2, 3), v)
				c.call(op+".Scalar", c.x(d), v)
			}
			c.named(named{"alpha": v}, "add.Tensor", c.x(d, 2, 3), c.x(d, 2, 3))
			c.named(named{"alpha": v}, "sub.Tensor", c.x(d, 2, 3), c.x(d, 2, 3))
			if d != tensor.Bool {
				c.call("pow.Tensor_Scalar", c.x(d, 2, 3), v)
			}
		}
	}
	c.fails("pow.Tensor_Scalar", c.x(tensor.I64, 2), int64(-1))
	for _, e := range []aten.Value{0.5, 2.0, int64(0), int64(62), math.Inf(1)} {
		c.call("pow.Tensor_Scalar", c.x(tensor.F64, 5), e)
	}
	c.fails("add.Scalar", c.x(tensor.I64, 2), int64(1), 1.5)
}

// shapes adds to c.calls operations on two tensors whose shapes can be broadcast to one, and on
// some whose shapes cannot.
func (c *caller) shapes() {
	for _, pair := range [][2][]int{
		{{2, 3}, {2, 3}}, {{2, 1}, {1, 3}}, {{4, 1, 3}, {2, 1}}, {{0, 3}, {1, 3}}, {{1}, {0}}, {{5, 1, 2, 1}, {3, 1, 4}},
		{{2, 600}, {2, 1}}, {{2, 1}, {2, 1100}}, {{3, 2, 1, 2}, {1, 2, 5, 1}}, {{1, 1}, {1}},
	} {
		c.call("add.Tensor", c.x(tensor.F32, pair[0]...), c.x(tensor.F32, pair[1]...))
		c.call("sub.Tensor", c.x(tensor.I64, pair[0]...), c.x(tensor.F64, pair[1]...))
		c.call("lt.Tensor", c.x(tensor.I32, pair[0]...), c.x(tensor.I32, pair[1]...))
	}
	c.fails("add.Tensor", c.x(tensor.F32, 2), c.x(tensor.F32, 3))
	c.fails("mul.Tensor", c.x(tensor.F32, 2, 3), c.x(tensor.F32, 4, 1, 2))
	c.fails("eq.Tensor", c.x(tensor.F32, 5, 2, 3), c.x(tensor.F32, 4, 3))
}

func (c *caller) functions() {
	for _, d := range allDTypes {
		for _, op := range []string{"exp", "log", "sqrt", "sin", "cos", "tanh", "sigmoid", "neg", "abs", "relu"} {
			if op == "abs" && d == tensor.Bool {
				continue // PyTorch's results for it are not useful
			}
			c.call(op, c.x(d, 3, 4))
			c.call(op, c.x(d))
			c.call(op, c.x(d, 0, 2))
		}
		for _, op := range []string{"clone", "contiguous", "nonzero"} {
			c.call(op, c.x(d, 2, 3, 2))
			c.call(op, c.x(d))
		}
		for _, e := range allDTypes {
			c.call("to.dtype", c.x(d, 2, 3), aten.ScalarTypeOf(e))
		}
		if d < tensor.C64 {
			c.call("item", c.x(d, 1, 1))
		}
		x := c.x(d, 2, 3)
		c.call("equal", x, permuted(c.T, x))
		c.call("equal", x, c.x(d, 2, 3))
		c.call("equal", x, c.x(d, 3, 2))
		if d > tensor.Bool {
			c.call("allclose", x, c.x(d, 3))
			c.call("allclose", x, x)
		}
	}
	nan := []aten.Value{tensorOf(c.T, math.NaN(), 1, math.Inf(1)), tensorOf(c.T, math.NaN(), 1+1e-9, math.Inf(1))}
	c.call("allclose", nan...)
	c.named(named{"equal_nan": true}, "allclose", nan...)
	c.call("equal", nan[0], nan[0])
	c.call("relu", nan[0])
	c.call("nonzero", nan[0])
	c.fails("allclose", c.x(tensor.F32, 2), c.x(tensor.F64, 2))
	c.fails("item", c.x(tensor.F32, 2))
	c.call("equal", c.x(tensor.F32, 2), c.x(tensor.F64, 2))
}

func tensorOf[T tensor.Element](t *testing.T, values ...T) *tensor.Tensor {
	t.Helper()
	x, err := tensor.FromSlice(values, len(values))
	require.NoError(t, err)
	return x
}

func (c *caller) creations() {
	sizes := [][]int64{{}, {3}, {2, 0}, {2, 3, 1}}
	for _, size := range sizes {
		for _, d := range allDTypes {
			dtype := named{"dtype": aten.ScalarTypeOf(d)}
			c.named(dtype, "zeros", size)
			c.named(dtype, "ones", size)
			c.named(dtype, "full", size, int64(3))
			x := c.x(d, 2, 3)
			c.call("zeros_like", x)
			c.call("ones_like", x)
			c.call("full_like", x, int64(2))
			c.named(dtype, "ones_like", c.x(tensor.I32, 2))
			c.named(dtype, "eye", int64(3))
			c.named(dtype, "eye.m", int64(2), int64(4))
		}
		c.call("zeros", size)
		c.call("ones", size)
		for _, v := range []aten.Value{true, int64(7), 1.5} {
			c.call("full", size, v)
		}
	}
	c.call("full", []int64{-1}, int64(1))
	c.named(named{"dtype": int64(0)}, "full", []int64{2}, int64(300))
	c.named(named{"dtype": int64(4)}, "full", []int64{2}, 1e30)
	c.call("eye", int64(3))
	c.call("eye.m", int64(0), int64(4))
	c.call("eye.m", int64(4), int64(2))
	c.aranges()
}

func (c *caller) aranges() {
	for _, end := range []aten.Value{int64(5), int64(0), 2.5, 0.0} {
		c.call("arange", end)
		c.named(named{"dtype": aten.ScalarTypeOf(tensor.F64)}, "arange", end)
		c.named(named{"dtype": aten.ScalarTypeOf(tensor.I16)}, "arange", end)
		c.named(named{"dtype": aten.ScalarTypeOf(tensor.F16)}, "arange", end)
		c.call("arange.start", int64(-2), end)
		c.call("arange.start_step", int64(-2), end, 0.5)
	}
	c.call("arange.start_step", int64(10), int64(0), int64(-3))
	c.call("arange.start_step", int64(0), int64(10), int64(3))
	c.call("arange.start_step", int64(0), int64(9), int64(3))
	c.fails("arange.start_step", int64(0), int64(9), int64(0))
	c.fails("arange.start_step", int64(0), int64(9), int64(-1))
	c.fails("arange", int64(-1))
	c.call("arange", math.NaN())
	c.call("arange", math.Inf(1))
}

func (c *caller) views() {
	x := c.x(tensor.F32, 2, 3, 4)
	for _, dims := range [][]int64{{0, 1, 2}, {2, 0, 1}, {-1, -2, 0}, {0, 1}, {0, 0, 1}, {0, 1, 3}} {
		c.call("permute", x, dims)
	}
	c.call("transpose.int", x, int64(0), int64(-1))
	c.fails("transpose.int", x, int64(0), int64(3))
	c.call("transpose.int", c.x(tensor.F32), int64(0), int64(-1))
	for _, shape := range [][]int{{}, {3}, {2, 3}} {
		c.call("t", c.x(tensor.I64, shape...))
	}
	c.fails("t", x)
	plain, err := x.Clone()
	require.NoError(c, err)
	for _, shape := range [][]int64{{24}, {4, -1}, {6, 4}, {2, -1, 2, 2}, {5, -1}, {-1, -1}, {3}, {-2, 12}} {
		c.call("reshape", x, shape)
		c.call("view", plain, shape)
		c.call("reshape", permuted(c.T, x), shape)
	}
	c.fails("reshape", x, []int64{5, 5})
	c.fails("reshape", c.x(tensor.F32, 0, 2), []int64{-1, 0})
	c.call("reshape", c.x(tensor.F32), []int64{1, 1})
	c.call("expand", c.x(tensor.F32, 2, 1), []int64{3, 2, 4})
	c.call("expand", c.x(tensor.F32, 2, 1), []int64{-1, 4})
	c.call("expand", c.x(tensor.F32, 2, 1), []int64{3, 4})
	c.call("expand", c.x(tensor.F32, 2, 1), []int64{-1, 2, 1})
	for _, dim := range []int64{0, 1, -1, -3, 3, 4, -5} {
		c.call("unsqueeze", x, dim)
		c.call("squeeze.dim", c.x(tensor.F32, 1, 3, 1), dim)
		c.call("select.int", x, dim, int64(1))
		c.call("select.int", x, dim, int64(-2))
		c.call("select.int", x, dim, int64(4))
		c.call("narrow", x, dim, int64(1), int64(1))
		c.call("narrow", x, dim, int64(-2), int64(2))
		c.call("narrow", x, dim, int64(0), int64(5))
		c.call("split.Tensor", x, int64(2), dim)
	}
	c.fails("select.int", x, int64(0), int64(5))
	c.call("squeeze", c.x(tensor.F32, 1, 3, 1))
	c.call("squeeze", c.x(tensor.F32, 1, 1))
	c.call("squeeze.dim", c.x(tensor.F32), int64(0))
	c.call("split.Tensor", c.x(tensor.F32, 0, 2), int64(0))
	c.fails("split.Tensor", x, int64(-1))
	c.fails("split.Tensor", x, int64(0))
	c.call("split.Tensor", x, int64(100))
}

func (c *caller) joins() {
	list := func(tensors ...*tensor.Tensor) []*tensor.Tensor { return tensors }
	for _, d := range allDTypes {
		for _, e := range allDTypes {
			c.call("cat", list(c.x(d, 2, 3), c.x(e, 1, 3)))
		}
		c.call("stack", list(c.x(d, 2, 3), c.x(d, 2, 3)), int64(-1))
	}
	for _, dim := range []int64{0, 1, 2, -1, -3, 3, -4} {
		c.call("cat", list(c.x(tensor.F32, 2, 3), c.x(tensor.F32, 2, 3)), dim)
		c.call("stack", list(c.x(tensor.F32, 2, 3), c.x(tensor.F32, 2, 3), c.x(tensor.F32, 2, 3)), dim)
	}
	c.call("stack", list(c.x(tensor.F32), c.x(tensor.F32)))
	c.call("cat", list(c.x(tensor.F32, 0), c.x(tensor.F32, 2, 3)), int64(1))
	c.call("cat", list(c.x(tensor.F64, 0), c.x(tensor.F32, 0)))
	c.fails("cat", list())
	c.fails("stack", list())
	c.fails("cat", list(c.x(tensor.F32, 2), c.x(tensor.F32)))
	c.fails("cat", list(c.x(tensor.F32, 2, 3), c.x(tensor.F32, 2)))
	c.fails("cat", list(c.x(tensor.F32, 2, 3), c.x(tensor.F32, 2, 4)))
	c.fails("stack", list(c.x(tensor.F32, 2, 3), c.x(tensor.F32, 2)))
}

func (c *caller) reductions() {
	for _, d := range allDTypes {
		for _, shape := range [][]int{{2, 3, 4}, {5}, {}} {
			x := c.x(d, shape...)
			c.call("sum", x)
			c.call("mean", x)
			c.named(named{"dtype": aten.ScalarTypeOf(tensor.F32)}, "sum", x)
			c.named(named{"dtype": aten.ScalarTypeOf(tensor.F64)}, "mean", x)
			for _, dims := range []aten.Value{nil, []int64{}, []int64{0}, []int64{-1}, []int64{0, 2}, []int64{1, 1}, []int64{7}} {
				c.call("sum.dim_IntList", x, dims, true)
				c.call("sum.dim_IntList", x, dims)
				c.call("mean.dim", x, dims)
			}
			c.ordered(x)
		}
		c.call("sum", c.x(d, 0, 3))
		c.call("sum.dim_IntList", c.x(d, 0, 3), []int64{0})
	}
	c.call("mean", c.x(tensor.F32, 0))
	c.fails("mean", c.x(tensor.I64, 2))
	c.call("max", tensorOf(c.T, 1, math.NaN(), 3))
	c.call("argmin", tensorOf(c.T, 1, math.NaN(), 3))
	c.call("max.dim", c.x(tensor.F32, 3, 0), int64(1))
	c.call("max.dim", c.x(tensor.F32, 0, 3), int64(1))
	c.call("max", c.x(tensor.F32, 0))
	c.call("argmax", c.x(tensor.F32, 0))
	c.softmaxes()
}

// ordered adds to c.calls the maxima and minima of x. It adds none if x is complex, which PyTorch
// does not support, or has bools, which PyTorch supports only partly.
func (c *caller) ordered(x *tensor.Tensor) {
	if d := x.DType(); d > tensor.F64 || d == tensor.Bool {
		return
	}
	for _, name := range []string{"max", "min"} {
		c.call(name, x)
		c.call("arg"+name, x)
		for _, dim := range []int64{0, 1, -1, 3} {
			c.call(name+".dim", x, dim)
			c.call(name+".dim", x, dim, true)
			c.call("arg"+name, x, dim, true)
		}
	}
}

func (c *caller) softmaxes() {
	for _, d := range allDTypes {
		for _, op := range []string{"softmax.int", "log_softmax.int"} {
			if d == tensor.F16 {
				c.named(named{"dtype": aten.ScalarTypeOf(tensor.F32)}, op, c.x(d, 2, 3), int64(1))
				continue // PyTorch supports no other dtype on the CPU
			}
			for _, dim := range []int64{0, 1, -1, 2} {
				c.call(op, c.x(d, 2, 3), dim)
			}
			if d < tensor.C64 {
				c.call(op, c.x(d, 2, 3, 4), int64(1), aten.ScalarTypeOf(tensor.F64))
			}
		}
	}
	c.call("softmax.int", c.x(tensor.F32), int64(0))
	c.call("softmax.int", c.x(tensor.F32, 0, 3), int64(0))
	c.call("softmax.int", tensorOf(c.T, 1e30, 1, -1e30), int64(0))
	c.call("log_softmax.int", tensorOf(c.T, 1e30, 1, -1e30), int64(0))
}

func (c *caller) products() {
	for _, d := range allDTypes {
		if d == tensor.F16 {
			continue // PyTorch does not multiply half-precision matrices on the CPU
		}
		c.call("mm", c.x(d, 2, 3), c.x(d, 3, 4))
		c.call("bmm", c.x(d, 5, 2, 3), c.x(d, 5, 3, 4))
		c.call("matmul", c.x(d, 2, 3), c.x(d, 3))
	}
	d := tensor.F64
	for _, pair := range [][2][]int{
		{{3}, {3}}, {{3}, {3, 2}}, {{2, 3}, {3}}, {{2, 3}, {3, 4}}, {{5, 2, 3}, {3, 4}}, {{2, 3}, {5, 3, 4}},
		{{5, 1, 2, 3}, {4, 3, 2}}, {{3}, {5, 3, 4}}, {{5, 2, 3}, {3}}, {{0, 3}, {3, 2}}, {{2, 0}, {0, 3}}, {{2, 2, 3}, {3, 3, 2}},
		{{0, 2, 3}, {3, 2}}, {{}, {2}}, {{2, 3}, {2, 3}}, {{64, 70}, {70, 65}},
	} {
		c.call("matmul", c.x(d, pair[0]...), c.x(d, pair[1]...))
	}
	c.call("mv", c.x(d, 2, 3), c.x(d, 3))
	c.call("dot", c.x(d, 3), c.x(d, 3))
	c.call("dot", c.x(d, 3), c.x(d, 4))
	c.call("linear", c.x(d, 4, 3), c.x(d, 2, 3))
	c.call("linear", c.x(d, 4, 3), c.x(d, 2, 3), c.x(d, 2))
	c.call("linear", c.x(d, 5, 4, 3), c.x(d, 2, 3), c.x(d, 2))
	list := func(tensors ...*tensor.Tensor) []*tensor.Tensor { return tensors }
	c.call("linalg_multi_dot", list(c.x(d, 4, 3), c.x(d, 3, 2)))
	c.call("linalg_multi_dot", list(c.x(d, 4, 6), c.x(d, 6, 5), c.x(d, 5, 7), c.x(d, 7, 2)))
	c.call("linalg_multi_dot", list(c.x(d, 3), c.x(d, 3, 2), c.x(d, 2)))
	c.fails("linalg_multi_dot", list(c.x(d, 4, 3)))
	c.call("linalg_multi_dot", list(c.x(d, 4, 3), c.x(d, 3, 2), c.x(d, 3, 2)))
	c.fails("mm", c.x(d, 2, 3), c.x(d, 4, 5))
	c.fails("mm", c.x(d, 2), c.x(d, 4, 5))
	c.fails("mm", c.x(d, 2, 4), c.x(d, 4))
	c.fails("bmm", c.x(d, 2, 3, 4), c.x(d, 3, 4, 5))
	c.call("mm", c.x(d, 2, 3), c.x(tensor.F32, 3, 5))
	c.call("mv", c.x(d, 2), c.x(d, 2))
}

// sparseWithDuplicates returns a sparse tensor of dtype d with three random values, the first two
// of them at the same index. values is the shape of each value.
func (c *caller) sparseWithDuplicates(d tensor.DType, values ...int) *tensor.Sparse {
	positions := []int64{0, 1, 0, 2, 0, 3}
	n := len(positions) / 2
	indices, err := tensor.FromSlice(positions, 2, n)
	require.NoError(c, err)
	s, err := tensor.NewSparse(indices, c.x(d, append([]int{n}, values...)...), append([]int{3, 4}, values...)...)
	require.NoError(c, err)
	return s
}

func (c *caller) sparse() {
	for _, d := range []tensor.DType{tensor.I64, tensor.F32, tensor.F64, tensor.C64} {
		s := c.sparseWithDuplicates(d)
		sum, err := s.Coalesce()
		require.NoError(c, err)
		c.call("add.Tensor", s, c.sparseWithDuplicates(d))
		c.call("add.Tensor", sum, s)
		c.named(named{"alpha": int64(3)}, "add.Tensor", c.sparseWithDuplicates(d, 2), c.sparseWithDuplicates(d, 2))
		c.call("sub.Tensor", s, c.sparseWithDuplicates(d))
		c.named(named{"alpha": int64(2)}, "sub.Tensor", c.x(d, 3, 4), s)
		c.call("add.Tensor", c.x(d, 3, 4), s)
		c.call("add.Tensor", c.x(d, 4), s)
		c.call("mul.Scalar", s, int64(2))
		c.call("div.Scalar", s, int64(2))
		c.call("div.Scalar", sum, 0.75)
		c.call("div.Scalar", c.sparseWithDuplicates(d, 2), int64(-3))
		c.call("mul.Tensor", s, c.sparseWithDuplicates(d))
		c.call("mul.Tensor", sum, c.sparseWithDuplicates(tensor.F64))
		c.call("mul.Tensor", s, c.x(d, 3, 4))
		c.call("mul.Tensor", c.x(tensor.F32, 3, 4), s)
		c.call("mul.Tensor", c.sparseWithDuplicates(d, 2), c.x(d, 3, 4, 2))
		c.call("mul.Tensor", s, c.x(d, 4))
		c.call("mul.Tensor", s, c.x(tensor.F64))
		c.call("neg", s)
		c.call("clone", s)
		c.call("coalesce", s)
		c.call("coalesce", sum)
		c.call("is_coalesced", s)
		c.call("_indices", s)
		c.call("_values", s)
		c.call("indices", sum)
		c.call("values", sum)
		c.fails("indices", s)
		c.fails("values", s)
		c.call("to_dense", s)
		c.call("_sparse_sum", s)
		c.call("_sparse_sum", c.sparseWithDuplicates(d, 2))
		if d != tensor.I64 {
			c.call("mm", s, c.x(d, 4, 2))
			c.call("_sparse_mm", s, c.x(d, 4, 2))
			c.call("mm", s, c.x(d, 3, 2))
		}
	}
	x, v := tensorOf(c.T, int64(0), 2, 1, 2), c.x(tensor.F32, 2)
	at, err := x.View(2, 2)
	require.NoError(c, err)
	c.call("sparse_coo_tensor.indices", at, v)
	c.call("sparse_coo_tensor.indices", at, c.x(tensor.F32, 2, 3))
	c.call("sparse_coo_tensor.indices_size", at, v, []int64{4, 5})
	c.call("sparse_coo_tensor.indices_size", at, v, []int64{2, 5})
	c.call("sparse_coo_tensor.indices_size", at, c.x(tensor.F32, 3), []int64{4, 5})
	c.call("_sparse_coo_tensor_unsafe", at, v, []int64{4, 5})
}
