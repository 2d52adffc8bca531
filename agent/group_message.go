package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// groupFailure returns the failure that is sent for an error about a worker.
func groupFailure(worker string, err error) *wire.GroupFailure {
	f := &wire.GroupFailure{Code: wire.GroupCanceled, Worker: worker, Text: err.Error()}
	switch {
	case errors.Is(err, ErrRestarted):
		f.Code = wire.GroupRestarted
	case errors.Is(err, ErrUnreachable), errors.Is(err, ErrNoWorker):
		f.Code = wire.GroupUnreachable
	case errors.Is(err, ErrTimeout):
		f.Code = wire.GroupTimeout
	}
	return f
}

// groupError returns a received failure as an *Error with the worker that caused it.
func groupError(f *wire.GroupFailure) error {
	kind := ErrCallerGone
	switch f.Code {
	case wire.GroupRestarted:
		kind = ErrRestarted
	case wire.GroupUnreachable:
		kind = ErrUnreachable
	case wire.GroupTimeout:
		kind = fmt.Errorf("%w: %w", ErrTimeout, context.DeadlineExceeded)
	}
	return &Error{Worker: f.Worker, Err: fmt.Errorf("%w: %s", kind, f.Text)}
}

// encodePacked encodes the value that ptr points to. The tensors of the result refer to the memory
// of the value's tensors. The error is that of the codec.
func (a *Agent) encodePacked(ptr any) (wire.Packed, error) {
	e := a.outMessages.get()
	defer a.outMessages.put(e)
	e.encoder.Reset(nil)
	if err := e.encoder.Encode(ptr); err != nil {
		return wire.Packed{}, err
	}
	data, parts, err := e.encoder.Finish()
	if err != nil {
		return wire.Packed{}, err
	}
	p := wire.Packed{Data: bytes.Clone(data)}
	for _, part := range parts {
		t, err := tensor.FromBuffer(part.Buffer, tensor.U8, part.Buffer.Len())
		if err != nil {
			return wire.Packed{}, err
		}
		p.Tensors = append(p.Tensors, t)
	}
	return p, nil
}

// decodePacked decodes p to the variable that ptr points to. The error matches ErrProtocol, or is
// that of the codec.
func (a *Agent) decodePacked(p wire.Packed, ptr any) error {
	in := a.inMessages.pool.Get().(*inMessage)
	defer a.inMessages.put(in)
	if err := in.decoder.Reset(p.Data); err != nil {
		return err
	}
	in.storages = in.storages[:0]
	for _, t := range p.Tensors {
		if t == nil || t.DType() != tensor.U8 || t.Offset() != 0 || t.Storage().Len() != t.Len() {
			return fmt.Errorf("%w: not the bytes of a storage", ErrProtocol)
		}
		in.storages = append(in.storages, t.Storage())
	}
	if err := in.checkTensors(); err != nil {
		return err
	}
	if err := in.decoder.Supply(in.storages); err != nil {
		return err
	}
	return errors.Join(in.decoder.Decode(ptr), in.decoder.Finish())
}
