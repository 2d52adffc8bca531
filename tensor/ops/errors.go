package ops

import (
	"fmt"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// SizeError reports that two tensors cannot be broadcast to one shape.
type SizeError struct {
	A, B int // the sizes
	Dim  int // of the result
}

// Error returns the text that PyTorch has for this error.
func (e *SizeError) Error() string {
	return fmt.Sprintf("The size of tensor a (%d) must match the size of tensor b (%d) at non-singleton dimension %d", e.A, e.B, e.Dim)
}

// ValueError reports why the arguments of an operator are invalid.
type ValueError struct{ Reason string }

func (e *ValueError) Error() string { return e.Reason }

// valueErrorf returns a *ValueError whose reason is formatted as fmt.Sprintf does.
func valueErrorf(format string, args ...any) error {
	return &ValueError{Reason: fmt.Sprintf(format, args...)}
}

// LimitError reports that an operator would allocate a tensor larger than Engine.MaxBytes.
type LimitError struct {
	Bytes int // bytes that the tensor needs
	Limit int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("ops: a tensor of %d bytes exceeds the limit of %d", e.Bytes, e.Limit)
}

// DeviceMismatchError reports that the tensors of an operator are not all on one device.
type DeviceMismatchError struct{ First, Second device.Device }

// Error returns the text that PyTorch has for this error.
func (e *DeviceMismatchError) Error() string {
	return fmt.Sprintf("Expected all tensors to be on the same device, but found at least two devices, %v and %v!", e.First, e.Second)
}

// sizes returns a shape as PyTorch's error texts write it, for example "[2, 3]".
func sizes(shape []int) string {
	return strings.ReplaceAll(fmt.Sprint(shape), " ", ", ")
}

// wrapDim returns dim as the index from 0 of a dimension of a tensor of the given rank. A negative
// dim counts from the last dimension; a tensor of rank 0 counts as having one dimension. If there
// is no such dimension, the error is a *ValueError.
func wrapDim(dim, rank int) (int, error) {
	n := max(rank, 1)
	if dim < -n || dim >= n {
		return 0, valueErrorf("Dimension out of range (expected to be in range of [%d, %d], but got %d)", -n, n-1, dim)
	}
	if dim < 0 {
		dim += n
	}
	return dim, nil
}
