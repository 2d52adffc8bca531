package rref

import (
	"fmt"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
)

// MarshalJSON fails with an error that matches ErrEncoding: a reference outside of a call would not
// keep its value.
func (h *handle) MarshalJSON() ([]byte, error) {
	return nil, fmt.Errorf("%w, not as JSON", ErrEncoding)
}

// GobEncode fails with an error that matches ErrEncoding.
func (h *handle) GobEncode() ([]byte, error) { return nil, fmt.Errorf("%w, not as gob", ErrEncoding) }

// GobDecode fails with an error that matches ErrEncoding.
func (h *handle) GobDecode([]byte) error { return fmt.Errorf("%w, not as gob", ErrEncoding) }

// TensorpipeName implements codec.Namer.
func (*Ref[T]) TensorpipeName() string { return refName }

// TensorpipeName implements codec.Namer.
func (*Any) TensorpipeName() string { return refName }

const refName = "rref.Ref"

// AppendTensorpipe implements codec.Appender: it encodes the reference in a message, as a new
// reference of the receiver. The error matches ErrEncoding outside of a call, ErrReleased, or is that
// of a reference whose creation has failed.
func (f *Ref[T]) AppendTensorpipe(e *codec.Encoder) error { return f.encode(e) }

// ParseTensorpipe implements codec.Parser.
func (f *Ref[T]) ParseTensorpipe(d *codec.Decoder) error {
	c, err := decodeRef(d)
	if err != nil {
		return err
	}
	f.set(c, runtime.AddCleanup(f, (*core).forget, c))
	return nil
}

// AppendTensorpipe implements codec.Appender, as that of Ref does.
func (a *Any) AppendTensorpipe(e *codec.Encoder) error { return a.encode(e) }

// ParseTensorpipe implements codec.Parser.
func (a *Any) ParseTensorpipe(d *codec.Decoder) error {
	c, err := decodeRef(d)
	if err != nil {
		return err
	}
	a.set(c, runtime.AddCleanup(a, (*core).forget, c))
	return nil
}
