package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Workers that do something together send what they have to the one of the lowest
// rank, as a request of this type, which is answered when all have come.
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

// groupFailure is why a round came to nothing.
type groupFailure struct {
	Code   groupCode
	Worker string // who is to blame
	Text   string
}

type groupCode byte

const (
	groupUnreachable groupCode = 1 + iota
	groupRestarted
	groupGaveUp
	groupTimeout
)

// blame makes a failure of an error that concerns a worker.
func blame(worker string, err error) *groupFailure {
	f := &groupFailure{Code: groupGaveUp, Worker: worker, Text: err.Error()}
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

// packed is a value that those who pass it on do not decode.
type packed struct {
	Data    []byte
	Tensors []*tensor.Tensor // its storages, as bytes
}

func (a *Agent) pack(ptr any) (packed, error) {
	e := a.envelopes.get()
	defer a.envelopes.put(e)
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

func (a *Agent) unpack(p packed, ptr any) error {
	in := a.arrivals.pool.Get().(*arrival)
	defer a.arrivals.put(in)
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
	if err := in.match(); err != nil {
		return err
	}
	if err := in.decoder.Supply(in.storages); err != nil {
		return err
	}
	return errors.Join(in.decoder.Decode(ptr), in.decoder.Finish())
}
