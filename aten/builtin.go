package aten

import (
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// defaultBytes bounds the tensors of operators without an engine.
const defaultBytes = 1 << 30

// Default returns a new table with the operators of this package, computed by an engine of its own
// with MaxBytes 1 GiB. The table is independent of those returned before.
func Default() *Table { return Builtin(nil) }

// Builtin returns a new table with the operators of this package, which e computes. Nil stands for
// an engine that puts results on the Go heap, with MaxBytes 1 GiB. An engine for the calls of peers
// must have a limit.
func Builtin(e *ops.Engine) *Table {
	if e == nil {
		e = &ops.Engine{MaxBytes: defaultBytes}
	}
	t := &Table{}
	for _, group := range [][]builtin{pointwiseOps, compareOps, reductionOps, matrixOps} {
		t.add(e, group, true)
	}
	for _, group := range [][]builtin{creationOps, viewOps, sparseOps} { // results may be larger than the arguments
		t.add(e, group, false)
	}
	return t
}

// add registers the operators of group in t, with "aten::" before each name. e computes
// them, and short becomes the field Short of all of them. add panics if a schema is invalid. It
// skips an operator whose name t has already; a test checks that there is none.
func (t *Table) add(e *ops.Engine, group []builtin, short bool) {
	for _, b := range group {
		schema := MustParse("aten::" + b.schema)
		// A test checks that no name occurs twice.
		_ = t.Register(Operator{Schema: schema, Kernel: bind(schema.FullName(), e, b.kernel, b.sparse), Short: short})
	}
}

// builtin describes an operator of this package.
type builtin struct {
	schema string // without the namespace
	kernel kernel
	sparse bool // accepts sparse tensors
}

// creationArgs is the end of the schema of functions that create tensors.
const creationArgs = "*, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"

// likeArgs is the end of the schema of functions that create a tensor like another one.
const likeArgs = "*, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"

var zero, one = ops.Int(0), ops.Int(1)

var pointwiseOps = []builtin{
	{"add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", add, true},
	{"add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", add, false},
	{"sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", sub, true},
	{"sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", sub, false},
	{"mul.Tensor(Tensor self, Tensor other) -> Tensor", mul, true},
	{"mul.Scalar(Tensor self, Scalar other) -> Tensor", mulNumber, true},
	{"div.Tensor(Tensor self, Tensor other) -> Tensor", binary((*ops.Engine).Div), false},
	{"div.Scalar(Tensor self, Scalar other) -> Tensor", divNumber, true},
	{"pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor", dense(pow), false},
	{"neg(Tensor self) -> Tensor", neg, true},
	{"abs(Tensor self) -> Tensor", unary((*ops.Engine).Abs), false},
	{"relu(Tensor self) -> Tensor", unary((*ops.Engine).Relu), false},
	{"exp(Tensor self) -> Tensor", unary((*ops.Engine).Exp), false},
	{"log(Tensor self) -> Tensor", unary((*ops.Engine).Log), false},
	{"sqrt(Tensor self) -> Tensor", unary((*ops.Engine).Sqrt), false},
	{"sin(Tensor self) -> Tensor", unary((*ops.Engine).Sin), false},
	{"cos(Tensor self) -> Tensor", unary((*ops.Engine).Cos), false},
	{"tanh(Tensor self) -> Tensor", unary((*ops.Engine).Tanh), false},
	{"sigmoid(Tensor self) -> Tensor", unary((*ops.Engine).Sigmoid), false},
}

var compareOps = []builtin{
	{"eq.Tensor(Tensor self, Tensor other) -> Tensor", comparison(ops.Eq), false},
	{"eq.Scalar(Tensor self, Scalar other) -> Tensor", comparison(ops.Eq), false},
	{"ne.Tensor(Tensor self, Tensor other) -> Tensor", comparison(ops.Ne), false},
	{"ne.Scalar(Tensor self, Scalar other) -> Tensor", comparison(ops.Ne), false},
	{"lt.Tensor(Tensor self, Tensor other) -> Tensor", comparison(ops.Lt), false},
	{"lt.Scalar(Tensor self, Scalar other) -> Tensor", comparison(ops.Lt), false},
	{"le.Tensor(Tensor self, Tensor other) -> Tensor", comparison(ops.Le), false},
	{"le.Scalar(Tensor self, Scalar other) -> Tensor", comparison(ops.Le), false},
	{"gt.Tensor(Tensor self, Tensor other) -> Tensor", comparison(ops.Gt), false},
	{"gt.Scalar(Tensor self, Scalar other) -> Tensor", comparison(ops.Gt), false},
	{"ge.Tensor(Tensor self, Tensor other) -> Tensor", comparison(ops.Ge), false},
	{"ge.Scalar(Tensor self, Scalar other) -> Tensor", comparison(ops.Ge), false},
	{"equal(Tensor self, Tensor other) -> bool", equal, false},
	{"allclose(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> bool", allClose, false},
	{"nonzero(Tensor self) -> Tensor", unary((*ops.Engine).Nonzero), false},
}

var creationOps = []builtin{
	{"zeros(SymInt[] size, " + creationArgs, constant(&zero), false},
	{"ones(SymInt[] size, " + creationArgs, constant(&one), false},
	{"full(SymInt[] size, Scalar fill_value, " + creationArgs, constant(nil), false},
	{"zeros_like(Tensor self, " + likeArgs, constant(&zero), false},
	{"ones_like(Tensor self, " + likeArgs, constant(&one), false},
	{"full_like(Tensor self, Scalar fill_value, " + likeArgs, constant(nil), false},
	{"eye(int n, " + creationArgs, eye(1), false},
	{"eye.m(int n, int m, " + creationArgs, eye(2), false},
	{"arange(Scalar end, " + creationArgs, arange(1), false},
	{"arange.start(Scalar start, Scalar end, " + creationArgs, arange(2), false},
	{"arange.start_step(Scalar start, Scalar end, Scalar step=1, " + creationArgs, arange(3), false},
}

var viewOps = []builtin{
	{"t(Tensor(a) self) -> Tensor(a)", unary((*ops.Engine).T), false},
	{"transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)", dense(transpose), false},
	{"permute(Tensor(a) self, int[] dims) -> Tensor(a)", dense(permute), false},
	{"reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)", dense(reshape), false},
	{"view(Tensor(a) self, SymInt[] size) -> Tensor(a)", dense(view), false},
	{"expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)", dense(expand), false},
	{"unsqueeze(Tensor(a) self, int dim) -> Tensor(a)", dense(unsqueeze), false},
	{"squeeze(Tensor(a) self) -> Tensor(a)", dense(squeeze), false},
	{"squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)", dense(squeezeDim), false},
	{"select.int(Tensor(a) self, int dim, int index) -> Tensor(a)", dense(selectIndex), false},
	{"narrow(Tensor(a) self, int dim, int start, int length) -> Tensor(a)", dense(narrow), false},
	{"split.Tensor(Tensor(a -> *) self, int split_size, int dim=0) -> Tensor(a)[]", split, false},
	{"cat(Tensor[] tensors, int dim=0) -> Tensor", dense(cat), false},
	{"stack(Tensor[] tensors, int dim=0) -> Tensor", dense(stack), false},
	{"clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor", clone, true},
	{"contiguous(Tensor(a) self, *, MemoryFormat memory_format=contiguous_format) -> Tensor(a)", unary((*ops.Engine).Contiguous), false},
	{"to.dtype(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)", dense(toDType), false},
	{"item(Tensor self) -> Scalar", item, false},
}

var reductionOps = []builtin{
	{"sum(Tensor self, *, ScalarType? dtype=None) -> Tensor", reduction((*ops.Engine).Sum, false), false},
	{"sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor", reduction((*ops.Engine).Sum, true), false},
	{"mean(Tensor self, *, ScalarType? dtype=None) -> Tensor", reduction((*ops.Engine).Mean, false), false},
	{"mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor", reduction((*ops.Engine).Mean, true), false},
	{"max(Tensor self) -> Tensor", unary((*ops.Engine).Max), false},
	{"max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)", extremesOfDim((*ops.Engine).MaxDim), false},
	{"min(Tensor self) -> Tensor", unary((*ops.Engine).Min), false},
	{"min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)", extremesOfDim((*ops.Engine).MinDim), false},
	{"argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", indexOf((*ops.Engine).ArgMax, (*ops.Engine).MaxDim), false},
	{"argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", indexOf((*ops.Engine).ArgMin, (*ops.Engine).MinDim), false},
	{"softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", softmax((*ops.Engine).Softmax), false},
	{"log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", softmax((*ops.Engine).LogSoftmax), false},
}

var matrixOps = []builtin{
	{"mm(Tensor self, Tensor mat2) -> Tensor", mm, true},
	{"bmm(Tensor self, Tensor mat2) -> Tensor", binary((*ops.Engine).Bmm), false},
	{"mv(Tensor self, Tensor vec) -> Tensor", binary((*ops.Engine).Mv), false},
	{"dot(Tensor self, Tensor tensor) -> Tensor", binary((*ops.Engine).Dot), false},
	{"matmul(Tensor self, Tensor other) -> Tensor", binary((*ops.Engine).MatMul), false},
	{"linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor", dense(linear), false},
	{"linalg_multi_dot(Tensor[] tensors) -> Tensor", dense(multiDot), false},
}

var sparseOps = []builtin{
	{"sparse_coo_tensor.indices(Tensor indices, Tensor values, " + creationArgs, makeSparse(true), false},
	{"sparse_coo_tensor.indices_size(Tensor indices, Tensor values, int[] size, " + creationArgs, makeSparse(false), false},
	{"_sparse_coo_tensor_unsafe(Tensor indices, Tensor values, int[] size, " + creationArgs, makeSparse(false), false},
	{"coalesce(Tensor(a) self) -> Tensor(a)", ofSparse(func(_ *call, s *tensor.Sparse) (Value, error) { return value(s.Coalesce()) }), true},
	{"is_coalesced(Tensor self) -> bool", ofSparse(func(_ *call, s *tensor.Sparse) (Value, error) { return s.Coalesced(), nil }), true},
	{"indices(Tensor(a) self) -> Tensor(a)", ofCoalesced("indices", (*tensor.Sparse).Indices), true},
	{"values(Tensor(a) self) -> Tensor(a)", ofCoalesced("values", (*tensor.Sparse).Values), true},
	{"_indices(Tensor(a) self) -> Tensor(a)", ofSparse(func(_ *call, s *tensor.Sparse) (Value, error) { return s.Indices(), nil }), true},
	{"_values(Tensor(a) self) -> Tensor(a)", ofSparse(func(_ *call, s *tensor.Sparse) (Value, error) { return s.Values(), nil }), true},
	{"to_dense(Tensor self, ScalarType? dtype=None) -> Tensor", toDense, true},
	{"_sparse_mm(Tensor sparse, Tensor dense) -> Tensor", mm, true},
	{"_sparse_sum(Tensor self) -> Tensor", ofSparse(func(c *call, s *tensor.Sparse) (Value, error) { return value(c.engine.SumSparse(c.ctx, s)) }), true},
}
