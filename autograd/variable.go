package autograd

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Variable is a tensor that is part of a graph. A leaf is made by the application; other Variables
// are results of operators. If a Variable requires a gradient, the results of operators on it do, and
// remember how to compute it.
//
// Operators never change their arguments, except those that are named after a change in place, such
// as AddInPlace. The tensor of a Variable must not be changed by other means as long as a graph may
// need it. A Variable may be used by several goroutines at once, unless one changes it.
type Variable struct {
	value        Value
	node         *Node // that has computed it; nil for a leaf
	output       int   // of node
	requiresGrad bool
	isView       bool

	version    *version // shared by all Variables that view the same memory
	ownVersion version

	leaf atomic.Pointer[leaf] // of a leaf that requires a gradient
}

// version counts the changes in place of some memory.
type version struct {
	n      atomic.Uint32
	viewed atomic.Bool // there are views of it
}

// leaf is the gradient of a leaf.
type leaf struct {
	node *Node // that accumulates the gradient

	mu   sync.Mutex
	grad Value
}

// New returns a leaf with the data of v that requires no gradient. It shares the memory of v.
func New(v Value) *Variable {
	x := &Variable{value: v}
	x.version = &x.ownVersion
	return x
}

// Constant returns a leaf with the data of t that requires no gradient. It shares the memory of t.
func Constant(t *tensor.Tensor) *Variable { return New(Dense(t)) }

// Parameter returns a leaf with the data of t that requires a gradient. It shares the memory of t. The
// error is a *tensor.DTypeError unless the elements are floating point numbers.
func Parameter(t *tensor.Tensor) (*Variable, error) {
	x := Constant(t)
	return x, x.RequireGrad()
}

// RequireGrad makes x, a leaf that no operator has used yet, require a gradient. It does nothing for a
// result of an operator. The error is a *tensor.DTypeError unless the elements are floating point
// numbers.
func (x *Variable) RequireGrad() error {
	switch d := x.DType(); d {
	case tensor.F16, tensor.BF16, tensor.F32, tensor.F64:
		x.requiresGrad = x.node == nil
		return nil
	default:
		return &tensor.DTypeError{Name: d.String(), Reason: "only tensors of floating point numbers can require a gradient"}
	}
}

// Value returns the data.
func (x *Variable) Value() Value { return x.value }

// Tensor returns the data if it is dense, and otherwise nil.
func (x *Variable) Tensor() *tensor.Tensor { return x.value.dense }

// Sparse returns the data if it is sparse, and otherwise nil.
func (x *Variable) Sparse() *tensor.Sparse { return x.value.sparse }

// Shape returns the size of each dimension. The caller must not change it.
func (x *Variable) Shape() []int { return x.value.Shape() }

// Len returns the number of elements, and 0 if x is nil or its data is sparse.
func (x *Variable) Len() int {
	if x == nil || x.value.dense == nil {
		return 0
	}
	return x.value.dense.Len()
}

// DType returns the type of the elements.
func (x *Variable) DType() tensor.DType { return x.value.DType() }

// String returns dtype and shape, such as "f32[2,3]".
func (x *Variable) String() string { return x.value.String() }

// RequiresGrad reports whether x requires a gradient, or depends on a Variable that does.
func (x *Variable) RequiresGrad() bool { return x != nil && (x.requiresGrad || x.node != nil) }

// IsLeaf reports whether x is not the result of an operator that recorded a graph.
func (x *Variable) IsLeaf() bool { return x.node == nil }

// Node returns the node of the graph that has computed x, or nil if x is a leaf.
func (x *Variable) Node() *Node { return x.node }

// Detach returns a leaf with the same data, which shares the memory of x and requires no gradient.
func (x *Variable) Detach() *Variable {
	return &Variable{value: x.value, version: x.version, isView: true}
}

// Edge returns where the gradient of x goes: for a leaf that requires one, to the node that
// accumulates it. The Edge is zero if x is nil or requires none.
func (x *Variable) Edge() Edge {
	switch {
	case x == nil:
	case x.node != nil:
		return Edge{x.node, x.output}
	case x.requiresGrad:
		return Edge{x.accumulator().node, 0}
	}
	return Edge{}
}

// accumulator returns the gradient of x, a leaf that requires one.
func (x *Variable) accumulator() *leaf {
	if l := x.leaf.Load(); l != nil {
		return l
	}
	l := &leaf{node: &Node{name: "torch::autograd::AccumulateGrad", number: numbers.Add(1), leaf: x}}
	l.node.addForm(formOf(x.value))
	if !x.leaf.CompareAndSwap(nil, l) {
		return x.leaf.Load()
	}
	return l
}

// Grad returns the gradient that Backward has accumulated in x, a leaf. It is zero if there is none.
// The caller must not change it. A later pass may add to its memory.
func (x *Variable) Grad() Value {
	l := x.leaf.Load()
	if l == nil {
		return Value{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grad.Shared()
}

// ZeroGrad forgets the gradient of x.
func (x *Variable) ZeroGrad() {
	if l := x.leaf.Load(); l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.grad = Value{}
	}
}

// Hook is called with a gradient, before it is used, and returns the one to use in its place, which
// may be the same. Hooks of one pass are not called concurrently.
type Hook func(ctx context.Context, grad Value) (Value, error)

// AddHook makes f be called for the gradient of x in each pass, after the hooks that were added
// before. A hook of a leaf is called before the gradient is accumulated. The error matches
// ErrNotRequired if x requires no gradient, and ErrNoFunction if f is nil.
func (x *Variable) AddHook(f Hook) error {
	if f == nil {
		return opError("hook", ErrNoFunction)
	}
	edge := x.Edge()
	if edge.Node == nil {
		return opError("hook", fmt.Errorf("%w: cannot register a hook on it", ErrNotRequired))
	}
	edge.Node.addHook(edge.Output, f)
	return nil
}
