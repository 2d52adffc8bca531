package autograd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Node is a step of a graph: it computes the gradients of the arguments of an operator from those of
// its results. The node of a leaf accumulates the gradient. Nodes may be used by several passes at
// once.
type Node struct {
	name    string
	number  uint64 // unique; later operators have higher ones
	leaf    *Variable
	outputs int // results of the operator
	forms   [1]form
	more    []form // of all results, if there are several
	edges   []Edge
	inline  [3]Edge

	saves       bool // backward needs tensors, which are released after a pass that does not retain the graph
	takesAll    bool // backward is called in each pass, with zero Values for missing gradients
	isCustom    bool // backward is a function of the application
	takesSparse bool // backward takes sparse gradients; those of other nodes are made dense

	mu       sync.Mutex
	backward backwardFunc // nil for the node of a leaf, and if it was released
	hooks    hooks
}

// backwardFunc sets out, which has one element for each edge of a node, to the gradients of the
// arguments, given those of the results. It may leave out those that no edge needs. It must not return
// memory that it keeps.
type backwardFunc func(ctx context.Context, grads, out []Value) error

// Edge is where a gradient goes: to the node whose operator has the result with number Output.
type Edge struct {
	Node   *Node
	Output int
}

// hooks are the functions that are called before and after a node.
type hooks struct {
	pre  []outputHook
	post []PostHook
}

type outputHook struct {
	output int
	f      Hook
}

// PostHook is called when a node has computed the gradients of its arguments, which are arguments,
// from those of its results, which are results. The hook of a leaf is called when the gradient is
// accumulated, without arguments.
type PostHook func(ctx context.Context, arguments, results []Value) error

// numbers is the number of the last node, for all graphs of the process: only differences matter.
var numbers atomic.Uint64

// newNode returns a node for an operator on args, or nil if ctx records no graph or none of args
// requires a gradient. The caller sets backward.
func newNode(ctx context.Context, name string, args ...*Variable) *Node {
	required := false
	for _, x := range args {
		required = required || x.RequiresGrad()
	}
	if !required || !IsGradEnabled(ctx) {
		return nil
	}
	n := &Node{name: name, number: numbers.Add(1)}
	n.edges = n.inline[:0]
	for _, x := range args {
		n.edges = append(n.edges, x.Edge())
	}
	return n
}

// needs reports whether the argument with that number requires a gradient.
func (n *Node) needs(argument int) bool { return n.edges[argument].Node != nil }

// result returns the result t of an operator whose node is n, or which has none.
func result(t *tensor.Tensor, n *Node) *Variable {
	x := Constant(t)
	n.addResult(x)
	return x
}

// view returns the result t of an operator whose node is n, or which has none. t views memory of x.
func view(t *tensor.Tensor, n *Node, x *Variable) *Variable {
	v := &Variable{value: Dense(t), version: x.version, isView: true}
	x.version.viewed.Store(true)
	n.addResult(v)
	return v
}

// addResult makes the leaf x a result of the operator, the next one. It does nothing if n is nil.
func (n *Node) addResult(x *Variable) {
	if n == nil {
		return
	}
	x.node, x.output = n, n.outputs
	n.addForm(formOf(x.value))
}

// addForm adds the form of a result.
func (n *Node) addForm(f form) {
	switch n.outputs {
	case 0:
		n.forms[0] = f
	case 1:
		n.more = append([]form{n.forms[0]}, f)
	default:
		n.more = append(n.more, f)
	}
	n.outputs++
}

// NewSource returns a node whose results are the leaves in results, in their order. They must not
// have been used by an operator. A pass calls backward once, with their gradients; those that there
// are none of are zero Values. It is for a graph whose other part is elsewhere, such as in another
// process.
func NewSource(name string, results []*Variable,
	backward func(ctx context.Context, grads []Value) error,
) *Node {
	n := &Node{name: name, number: numbers.Add(1), takesAll: true, takesSparse: true}
	n.backward = func(ctx context.Context, grads, _ []Value) error { return backward(ctx, grads) }
	for _, x := range results {
		if x == nil {
			n.addForm(form{})
			continue
		}
		x.requiresGrad = false
		n.addResult(x)
	}
	return n
}

// NewSink returns a node to which a pass feeds the gradients of args, one for each, which it passes
// on. It is the counterpart of NewSource. An argument that requires no gradient gets none.
func NewSink(name string, args []*Variable) *Node {
	n := &Node{name: name, number: numbers.Add(1), takesSparse: true}
	for _, x := range args {
		n.edges = append(n.edges, x.Edge())
		if x == nil {
			n.addForm(form{})
		} else {
			n.addForm(formOf(x.value))
		}
	}
	n.backward = func(_ context.Context, grads, out []Value) error {
		copy(out, grads)
		return nil
	}
	return n
}

// form returns the form of a result of the operator.
func (n *Node) form(output int) *form {
	if n.more != nil {
		return &n.more[output]
	}
	return &n.forms[output]
}

// Name returns the name that PyTorch gives such a node, for example "AddBackward0", or the name of
// a custom function.
func (n *Node) Name() string { return n.name }

// Leaf returns the Variable whose gradient the node accumulates, or nil if it does not.
func (n *Node) Leaf() *Variable { return n.leaf }

// Edges returns, in a new slice, where the gradients of the arguments go. The Edge of an argument that
// requires no gradient is zero.
func (n *Node) Edges() []Edge { return slices.Clone(n.edges) }

// Outputs returns the number of results of the operator, and so of the gradients that the node takes.
func (n *Node) Outputs() int { return n.outputs }

// AddPostHook makes f be called after the node in each pass, after the hooks that were added before.
// It does nothing if f is nil.
func (n *Node) AddPostHook(f PostHook) {
	if f == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hooks.post = append(slices.Clip(n.hooks.post), f)
}

func (n *Node) addHook(output int, f Hook) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hooks.pre = append(slices.Clip(n.hooks.pre), outputHook{output, f})
}

// start returns the functions that the execution of the node calls. The error matches ErrReleased.
func (n *Node) start() (backwardFunc, hooks, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.backward == nil && n.leaf == nil {
		return nil, hooks{}, ErrReleased
	}
	return n.backward, n.hooks, nil
}

// release drops the tensors that the node has saved, if there are any: passes fail from then on.
func (n *Node) release() {
	if n.saves {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.backward = nil
	}
}

// saved is a tensor that a backward function needs.
type saved struct {
	value   Value
	version *version
	at      uint32
}

// save keeps the data of x for the backward function of n.
func (n *Node) save(x *Variable) saved {
	n.saves = true
	return saved{x.value, x.version, x.version.n.Load()}
}

// saveAll saves those of xs that are not nil.
func (n *Node) saveAll(xs ...*Variable) []saved {
	all := make([]saved, len(xs))
	for i, x := range xs {
		if x != nil {
			all[i] = n.save(x)
		}
	}
	return all
}

// checkSaved returns the first error of get of all.
func checkSaved(all []saved) error {
	for _, s := range all {
		if _, err := s.get(); err != nil {
			return err
		}
	}
	return nil
}

// get returns the data. The error matches ErrModified if it was changed in place since it was saved.
func (s saved) get() (Value, error) {
	if s.version == nil {
		return Value{}, nil // nothing was saved
	}
	if now := s.version.n.Load(); now != s.at {
		return Value{}, fmt.Errorf("%w: %v is at version %d; expected version %d instead",
			ErrModified, s.value, now, s.at)
	}
	return s.value, nil
}

// getDense returns the data, which is dense, or nil if nothing was saved.
func (s saved) getDense() (*tensor.Tensor, error) {
	v, err := s.get()
	return v.dense, err
}

// Zeros returns a gradient of the result with that number that is zero everywhere, dense, in new memory.
// The error matches ErrNoGradient if there is no such result, or is one of allocating it.
func (n *Node) Zeros(ctx context.Context, output int) (Value, error) {
	if output < 0 || output >= n.outputs {
		err := fmt.Errorf("%w: it has %d results, and none with number %d", ErrNoGradient, n.outputs, output)
		return Value{}, opError(n.name, err)
	}
	return n.form(output).zeros(ctx)
}
