package ops

import (
	"errors"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// halfNum is the types of the elements of F16 and BF16.
type halfNum interface {
	tensor.Element
	Float32() float32
}

// packed returns the elements of t in row-major order, and the tensor that owns their memory: t
// itself or a copy. The caller must not modify the elements, and must keep the owner alive while it
// uses them: the slice does not, and the memory of an unreachable tensor may be used for another
// one. T must be the Go type of the dtype of t. The errors are those of contiguous and of package
// tensor.
func packed[T tensor.Element](e *Engine, t *tensor.Tensor) ([]T, *tensor.Tensor, error) {
	owner, err := e.contiguous(t)
	if err != nil {
		return nil, nil, err
	}
	data, err := tensor.Data[T](owner)
	if !errors.Is(err, tensor.ErrUnaligned) {
		return data, owner, err
	}
	if owner, err = e.clone(t); err != nil {
		return nil, nil, err
	}
	data, err = tensor.Data[T](owner)
	return data, owner, err
}

// keepAlive keeps the memory of all tensors valid until it is called. Nil tensors are allowed.
func keepAlive(tensors ...*tensor.Tensor) {
	for _, t := range tensors {
		runtime.KeepAlive(t)
	}
}
