package ops

import "fmt"

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
