package ferry

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// The protocol: one transfer is one pipe. The metadata of every message is
// JSON, a word; the sender says
//
//	offer   once, first: names and sizes of all files
//	file    begins the next file, in the order of the offer; its one payload is
//	        the file up to where the tensors start
//	tensor  the next tensor of that file, in the order of its data, as the one
//	        tensor of the message, for cpu:0; empty ones too
//
// and the receiver
//
//	accepted  once, as the answer to the offer; nothing else moves before
//	placed    for each file, in any order: it is complete, checked and in place
//	fault     what is wrong, as text; it ends the transfer
//
// When all files are placed both ends close the pipe. A sender that gives up
// aborts it, and the reason travels with that.

// version is what the offer says; a receiver takes no other.
const version = 1

// Bounds of what is offered. They hold at both ends, so that a sender hears of
// them before it dials.
const (
	maxFiles  = 10_000
	maxHeader = 16 << 20 // bytes before the tensors of a file
	maxFault  = 4 << 10  // bytes of text
	maxWord   = 4 << 20  // bytes of metadata
)

// order is a word of the sender: exactly one of its fields.
type order struct {
	Offer  *offer       `json:"offer,omitempty"`
	File   *fileOrder   `json:"file,omitempty"`
	Tensor *tensorOrder `json:"tensor,omitempty"`
}

type offer struct {
	Version int       `json:"version"`
	Files   []offered `json:"files"`
}

// offered is one file: its name, as checkName wants it, its size, and that of
// its largest tensor.
type offered struct {
	Name    string `json:"name"`
	Bytes   int    `json:"bytes"`
	Largest int    `json:"largest"`
}

type fileOrder struct {
	File int    `json:"file"`   // index in the offer
	CRC  uint32 `json:"crc32c"` // of the payload
}

type tensorOrder struct {
	File  int    `json:"file"`
	Index int    `json:"index"`
	CRC   uint32 `json:"crc32c"`
}

// answer is a word of the receiver: exactly one of its fields.
type answer struct {
	Accepted bool        `json:"accepted,omitempty"`
	Placed   *fileAnswer `json:"placed,omitempty"`
	Fault    string      `json:"fault,omitempty"`
}

type fileAnswer struct {
	File int    `json:"file"`
	CRC  uint32 `json:"crc32c"` // of the whole file
}

// Limits returns the bounds that a context needs for transfers of tensors of up
// to so many bytes.
func Limits(tensorBytes int) pipe.Limits {
	return pipe.Limits{
		DescriptorBytes: maxWord + 1<<10,
		Payloads:        1,
		Tensors:         1,
		PayloadBytes:    maxHeader,
		TensorBytes:     tensorBytes,
		MessageBytes:    max(tensorBytes, maxHeader),
		UnadmittedBytes: 64 << 20, // until the offer of a sender is accepted
	}
}

// say makes a message of a word.
func say(word any) (*pipe.Message, error) {
	text, err := json.Marshal(word)
	if err != nil {
		return nil, err
	}
	if len(text) > maxWord {
		return nil, fmt.Errorf("a message of %d bytes of names, more than %d are not sent: send fewer files at once", len(text), maxWord)
	}
	return &pipe.Message{Metadata: text}, nil
}

// sayTensor makes a message of a word and the tensor it is about.
func sayTensor(word tensorOrder, data device.Buffer) (*pipe.Message, error) {
	m, err := say(order{Tensor: &word})
	if err != nil {
		return nil, err
	}
	m.Tensors = []pipe.Tensor{{Buffer: data, TargetDevice: device.CPU()}}
	return m, nil
}

// hear reads the word of a message, which has that many payloads and tensors.
func hear(d *pipe.Descriptor, word any) error {
	if err := json.Unmarshal(d.Metadata, word); err != nil {
		return brokenf("a message that is no word of this protocol: %w", err)
	}
	return nil
}

// expectParts fails unless a message has that many payloads and tensors.
func expectParts(d *pipe.Descriptor, payloads, tensors int) error {
	if len(d.Payloads) != payloads || len(d.Tensors) != tensors {
		return brokenf("a message with %d payloads and %d tensors where %d and %d belong",
			len(d.Payloads), len(d.Tensors), payloads, tensors)
	}
	return nil
}

// nextAnswer waits for a word of the receiver. A fault is a *FaultError.
func nextAnswer(ctx context.Context, p *pipe.Pipe) (answer, error) {
	in, err := p.Next(ctx)
	if err != nil {
		return answer{}, err
	}
	var a answer
	if err := hear(in.Descriptor(), &a); err != nil {
		return a, err
	}
	if err := expectParts(in.Descriptor(), 0, 0); err != nil {
		return a, err
	}
	if err := in.Discard(ctx); err != nil { // of nothing: the word was the metadata
		return a, err
	}
	if a.Fault != "" {
		return a, &FaultError{Text: a.Fault[:min(len(a.Fault), maxFault)]}
	}
	return a, nil
}
