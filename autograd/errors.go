package autograd

import (
	"errors"
	"fmt"
)

// Errors of this package, for errors.Is. The texts are those of PyTorch, where it has one.
var (
	// ErrNoGradient is returned where a gradient is needed and there is none.
	ErrNoGradient = errors.New("there is no gradient")

	// ErrNotRequired is returned by Backward for a root that does not depend on a Variable which
	// requires a gradient.
	ErrNotRequired = errors.New("does not require grad and does not have a grad_fn")

	// ErrNotScalar is returned by Backward for a root with more than one element and no gradient.
	ErrNotScalar = errors.New("grad can be implicitly created only for scalar outputs")

	// ErrReleased is returned by a second pass through a graph whose first pass did not retain it.
	ErrReleased = errors.New("the graph is released: Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed)")

	// ErrModified is returned by a pass that needs a tensor which an operator has changed in place.
	ErrModified = errors.New("one of the variables needed for gradient computation has been modified by an inplace operation")

	// ErrInPlace is returned for a change in place which the graph does not allow.
	ErrInPlace = errors.New("is being used in an in-place operation")

	// ErrNoTensor is returned by operators for an argument that is nil or has no data, and by Backward
	// without roots.
	ErrNoTensor = errors.New("there is no tensor")

	// ErrNoFunction is returned for a function that is nil.
	ErrNoFunction = errors.New("there is no function")

	// ErrSparse is returned by operators for a sparse tensor that they do not take, or a dense one
	// where they take only sparse ones.
	ErrSparse = errors.New("wrong layout of the tensor")
)

// errSparseDense is the error of a sum whose first term is sparse and whose second one is not.
var errSparseDense = fmt.Errorf("%w: a dense tensor cannot be added to a sparse one", ErrSparse)

// OpError is the error of an operator, or of its backward function. Op is the name of the operator,
// such as "matmul", or that of the Node, such as "MmBackward0".
type OpError struct {
	Op  string
	Err error
}

func (e *OpError) Error() string { return fmt.Sprintf("autograd: %s: %v", e.Op, e.Err) }
func (e *OpError) Unwrap() error { return e.Err }

// opError returns err as the error of the operator op, or nil if err is nil.
func opError(op string, err error) error {
	if err == nil {
		return nil
	}
	return &OpError{op, err}
}

// GradientError reports a gradient whose shape does not fit the tensor that it belongs to. Err is why
// it cannot be summed to that shape, or nil.
type GradientError struct {
	Got, Want []int
	Err       error
}

func (e *GradientError) Error() string {
	return fmt.Sprintf("got %v but expected shape compatible with %v", e.Got, e.Want)
}

func (e *GradientError) Unwrap() error { return e.Err }
