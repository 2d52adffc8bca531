package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// verdict is what the receiver reports, as the metadata of a message.
type verdict struct {
	Copies  int    `json:"copies"`
	Tensors int    `json:"tensors"` // of the last copy
	Fault   string `json:"fault,omitempty"`
}

// judge counts a copy that came and looks for faults. last says that the
// sender wants to hear the verdict.
func (v *verdict) judge(d *pipe.Descriptor, memory pipe.Allocation) (last bool) {
	var note weightsNote
	err := json.Unmarshal(d.Metadata, &note)
	if err == nil {
		err = verifyWeights(note, d, memory)
	}
	v.Copies++
	v.Tensors = len(d.Tensors)
	if err != nil {
		v.Fault = fmt.Sprintf("copy %d: %v", v.Copies, err)
	}
	return note.Last
}

func receiveVerdict(ctx context.Context, p *pipe.Pipe) (*verdict, error) {
	in, err := p.Next(ctx)
	if err != nil {
		return nil, err
	}
	var v verdict
	if err := json.Unmarshal(in.Descriptor().Metadata, &v); err != nil {
		return nil, fmt.Errorf("report of the receiver: %w", err)
	}
	return &v, in.Discard(ctx)
}

// accepts reports whether all that was sent is accounted for.
func (v *verdict) accepts(w *weights, copies int) error {
	switch {
	case v.Fault != "":
		return fmt.Errorf("the receiver says: %s", v.Fault)
	case v.Copies != copies || v.Tensors != len(w.notes):
		return fmt.Errorf("the receiver got %d copies of %d tensors, sent were %d of %d", v.Copies, v.Tensors, copies, len(w.notes))
	}
	return nil
}
