package ops

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Reduction is how a loss combines the losses of its elements.
type Reduction uint8

// The reductions, with PyTorch's numbers.
const (
	ReductionNone Reduction = iota // no combination: a tensor with one loss for each element
	ReductionMean                  // the mean, weighted if the elements have weights
	ReductionSum
)

// checkReduction returns nil if r is one of the reductions, and otherwise a *ValueError.
func checkReduction(r Reduction) error {
	if r > ReductionSum {
		return valueErrorf("%d is not a valid value for reduction", r)
	}
	return nil
}

// defaultIgnoreIndex is the target that counts as no class unless NLLOptions has another one.
const defaultIgnoreIndex = -100

// NLLOptions has the options of NLLLoss and CrossEntropy.
type NLLOptions struct {
	Reduction Reduction

	// IgnoreIndex is a target that is not counted: its loss and its gradients are 0. Nil stands for -100.
	IgnoreIndex *int64
}

// ignored returns the target that is not counted.
func (o NLLOptions) ignored() int64 {
	if o.IgnoreIndex != nil {
		return *o.IgnoreIndex
	}
	return defaultIgnoreIndex
}

// classTargets is the targets of a loss over classes, checked. Its slices are valid while the
// tensors in owners are alive.
type classTargets[T floatNum] struct {
	classes int     // C, the size of dimension 1 of the input, or of the only dimension
	inner   int     // the elements in the dimensions after it
	target  []int64 // from 0 to classes-1, or ignore
	ignore  int64
	weights []T // of the classes, nil if all are 1
	owners  [2]*tensor.Tensor
}

// newClassTargets returns the targets for x, of shape [C] or [N, C, ...] and of the dtype of T.
// target is of I64 and has the shape of x without C; weight is nil or has the shape [C] and the
// dtype of x. The error is a *ValueError if an argument is invalid, a *LimitError, or an error of
// package tensor.
func newClassTargets[T floatNum](e *Engine, x, target, weight *tensor.Tensor,
	o NLLOptions) (*classTargets[T], error) {
	if err := checkClassTargets(x, target, weight, o); err != nil {
		return nil, err
	}
	c := &classTargets[T]{classes: x.Shape()[classDim(x)], inner: 1, ignore: o.ignored()}
	for _, size := range x.Shape()[classDim(x)+1:] {
		c.inner *= size
	}
	var err error
	if weight != nil {
		if c.weights, c.owners[0], err = packed[T](e, weight); err != nil {
			return nil, err
		}
	}
	if c.target, c.owners[1], err = packed[int64](e, target); err != nil {
		return nil, err
	}
	for _, class := range c.target {
		if class != c.ignore && (class < 0 || class >= int64(c.classes)) {
			return nil, valueErrorf("Target %d is out of bounds.", class)
		}
	}
	return c, nil
}

// checkClassTargets returns a *ValueError unless newClassTargets takes the dtypes and shapes of these
// arguments and the reduction.
func checkClassTargets(x, target, weight *tensor.Tensor, o NLLOptions) error {
	if err := checkReduction(o.Reduction); err != nil {
		return err
	}
	if err := checkTargetShape(x.Shape(), target.Shape()); err != nil {
		return err
	}
	if target.DType() != tensor.I64 {
		return valueErrorf("expected scalar type Long but found %s", torchNames[target.DType()])
	}
	if weight == nil {
		return nil
	}
	classes := x.Shape()[classDim(x)]
	if weight.Rank() != 1 || weight.Shape()[0] != classes {
		return valueErrorf("weight tensor should be defined either for all %d classes or no classes "+
			"but got weight tensor of shape: %s", classes, sizes(weight.Shape()))
	}
	return sameDType(x, weight)
}

// classDim returns the dimension of the classes in x, which has the shape [C] or [N, C, ...].
func classDim(x *tensor.Tensor) int { return min(1, x.Rank()-1) }

// checkTargetShape returns nil if target, the shape of the targets, is xs, the shape of the input,
// without the dimension of the classes, and otherwise a *ValueError.
func checkTargetShape(xs, target []int) error {
	switch {
	case len(xs) == 0:
		return valueErrorf("Expected 1 or more dimensions (got 0)")
	case len(xs) == 1:
		if len(target) != 0 {
			return valueErrorf("size mismatch (got input: %s, target: %s)", sizes(xs), sizes(target))
		}
	case len(target) == 0 || target[0] != xs[0]:
		batch := 1
		if len(target) > 0 {
			batch = target[0]
		}
		return valueErrorf("Expected input batch_size (%d) to match target batch_size (%d).", xs[0], batch)
	case len(xs) == 2 && len(target) != 1:
		return valueErrorf("0D or 1D target tensor expected, multi-target not supported")
	case !slices.Equal(target[1:], xs[2:]):
		return valueErrorf("Expected target size %s, got %s", sizes(append([]int{xs[0]}, xs[2:]...)), sizes(target))
	}
	return nil
}

// at returns the position, in the contiguous input, of the class of target k, and its weight. ok is
// false if the target is ignored.
func (c *classTargets[T]) at(k int) (position int, weight T, ok bool) {
	class := c.target[k]
	if class == c.ignore {
		return 0, 0, false
	}
	weight = 1
	if c.weights != nil {
		weight = c.weights[class]
	}
	return (k/c.inner*c.classes+int(class))*c.inner + k%c.inner, weight, true
}

// scalar returns a new tensor without dimensions whose element is v. The errors are those of
// newTensor.
func scalar[T floatNum](e *Engine, v T) (*tensor.Tensor, error) {
	t, to, err := newTensor[T](e)
	if err != nil {
		return nil, err
	}
	to[0] = v
	return t, nil
}

// scalarValue returns the element of t, a tensor without dimensions and of the dtype of like. name
// is for the error, which is a *ValueError if t is another tensor, or one of package tensor.
func scalarValue[T floatNum](name string, t, like *tensor.Tensor) (T, error) {
	if err := checkScalar(name, t, like); err != nil {
		return 0, err
	}
	return tensor.At[T](t)
}

// checkScalar returns a *ValueError unless t has no dimensions and the dtype of like.
func checkScalar(name string, t, like *tensor.Tensor) error {
	if err := sameDType(like, t); err != nil {
		return err
	}
	if t.Rank() != 0 {
		return valueErrorf("%s must have no dimensions, but has the shape %s", name, sizes(t.Shape()))
	}
	return nil
}
