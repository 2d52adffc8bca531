package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// groupFailure returns err, an error that the named worker has caused, in the form in which the
// leader of a round sends it to the members: with a code, the worker and the text of err.
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

// groupError returns the failure f, which the leader of a round sent, as an *Error whose Worker is
// the worker that caused the failure. It matches ErrRestarted, ErrUnreachable or ErrTimeout by the
// code of f, and otherwise ErrCallerGone. Its cause has the text of f, after that
// of the error that it matches, except for a timeout.
func groupError(f *wire.GroupFailure) error {
	kind := ErrCallerGone
	switch f.Code {
	case wire.GroupRestarted:
		kind = ErrRestarted
	case wire.GroupUnreachable:
		kind = ErrUnreachable
	case wire.GroupTimeout:
		return &Error{Worker: f.Worker, Err: errtext.New(f.Text, ctxerr.Wrap(context.DeadlineExceeded))}
	}
	return &Error{Worker: f.Worker, Err: errtext.New(prefixed(kind, f.Text), kind)}
}

// encodePacked encodes the value to which ptr points as bytes and tensors. The bytes are a copy.
// The tensors of the result share the memory of the value's tensors. The error is that of the codec
// or of a tensor.
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

// decodePacked decodes p, a result of encodePacked at a peer, to the variable to which ptr points.
// The tensors of the value share the storages of the tensors in p. The error matches ErrProtocol if
// p is not such a result, or is that of the codec.
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
	if err := in.checkTensors(len(in.storages), func(i int) int { return in.storages[i].Len() }); err != nil {
		return err
	}
	if err := in.decoder.Supply(in.storages); err != nil {
		return err
	}
	return errtext.Join(in.decoder.Decode(ptr), in.decoder.Finish())
}
