package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// groupType is the type of the requests by which the workers of a round send their contributions
// to the leader, the worker with the lowest rank. The leader replies when all have arrived. The
// names of the types and fields below are part of the wire format.
const groupType = "agent.group"

type groupRequest struct {
	Op      string
	Seq     uint64
	Members []identity // by rank
	Value   packed
}

type groupReply struct {
	Failure *groupFailure
	Values  []packed // in the order of the members
}

// groupFailure is the reason for which a round failed.
type groupFailure struct {
	Code   groupCode
	Worker string // the worker that caused the failure
	Text   string
}

type groupCode byte

const (
	groupUnreachable groupCode = 1 + iota
	groupRestarted
	groupCanceled
	groupTimeout
)

// newGroupFailure returns the failure for an error about a worker.
func newGroupFailure(worker string, err error) *groupFailure {
	f := &groupFailure{Code: groupCanceled, Worker: worker, Text: err.Error()}
	switch {
	case errors.Is(err, ErrRestarted):
		f.Code = groupRestarted
	case errors.Is(err, ErrUnreachable), errors.Is(err, ErrNoWorker):
		f.Code = groupUnreachable
	case errors.Is(err, ErrTimeout):
		f.Code = groupTimeout
	}
	return f
}

func (f *groupFailure) err() error {
	kind := ErrCallerGone
	switch f.Code {
	case groupRestarted:
		kind = ErrRestarted
	case groupUnreachable:
		kind = ErrUnreachable
	case groupTimeout:
		kind = fmt.Errorf("%w: %w", ErrTimeout, context.DeadlineExceeded)
	}
	return &Error{Worker: f.Worker, Err: fmt.Errorf("%w: %s", kind, f.Text)}
}

// packed is an encoded value, which the leader passes on without decoding it.
type packed struct {
	Data    []byte
	Tensors []*tensor.Tensor // its storages, as bytes
}

func (a *Agent) encodePacked(ptr any) (packed, error) {
	e := a.outMessages.get()
	defer a.outMessages.put(e)
	e.encoder.Reset(nil)
	if err := e.encoder.Encode(ptr); err != nil {
		return packed{}, err
	}
	data, parts, err := e.encoder.Finish()
	if err != nil {
		return packed{}, err
	}
	p := packed{Data: bytes.Clone(data)}
	for _, part := range parts {
		t, err := tensor.FromBuffer(part.Buffer, tensor.U8, part.Buffer.Len())
		if err != nil {
			return packed{}, err
		}
		p.Tensors = append(p.Tensors, t)
	}
	return p, nil
}

func (a *Agent) decodePacked(p packed, ptr any) error {
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
