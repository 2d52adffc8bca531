package filetransfer

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// The protocol: one transfer uses one pipe. The metadata of every message is JSON. The
// messages of the sender are
//
//	offer   once, first: names and sizes of all files
//	file    starts the next file, in the order of the offer; its only payload holds
//	        the bytes of the file before the tensors
//	tensor  the next tensor of that file, in the order of its data, as the only
//	        tensor of the message, with the target cpu:0; empty tensors are sent too
//
// and those of the receiver
//
//	accepted  once, the answer to the offer; the sender waits for it
//	placed    for each file, in any order: it is complete, checked and has its final name
//	fault     the error that ends the transfer, as text
//
// After all files were placed both ends close the pipe. A sender that fails aborts the pipe
// with its reason.

// version is the protocol version. A receiver rejects offers of another version.
const version = 1

// Bounds of an offer. Both ends check them, so that a sender fails before it dials.
const (
	maxFiles    = 10_000
	maxHeader   = 16 << 20 // bytes before the tensors of a file
	maxFault    = 4 << 10  // bytes of text
	maxMetadata = 4 << 20  // bytes of a message's JSON
)

// senderMessage is the metadata of a message of the sender. Exactly one field is set.
type senderMessage struct {
	Offer  *offer      `json:"offer,omitempty"`
	File   *fileHead   `json:"file,omitempty"`
	Tensor *tensorHead `json:"tensor,omitempty"`
}

type offer struct {
	Version int         `json:"version"`
	Files   []fileOffer `json:"files"`
}

// fileOffer describes one file of an offer: its name, which checkName must accept, its size in bytes,
// and the size of its largest tensor in bytes.
type fileOffer struct {
	Name    string `json:"name"`
	Bytes   int    `json:"bytes"`
	Largest int    `json:"largest"`
}

type fileHead struct {
	File int    `json:"file"`   // index in the offer
	CRC  uint32 `json:"crc32c"` // of the payload
}

type tensorHead struct {
	File  int    `json:"file"`
	Index int    `json:"index"`
	CRC   uint32 `json:"crc32c"`
}

// receiverMessage is the metadata of a message of the receiver. Exactly one field is set.
type receiverMessage struct {
	Accepted bool        `json:"accepted,omitempty"`
	Placed   *filePlaced `json:"placed,omitempty"`
	Fault    string      `json:"fault,omitempty"`
}

type filePlaced struct {
	File int    `json:"file"`
	CRC  uint32 `json:"crc32c"` // of the whole file
}

// Limits returns the limits of a pipe.Context for transfers whose tensors have up to tensorBytes bytes
// each.
func Limits(tensorBytes int) pipe.Limits {
	return pipe.Limits{
		DescriptorBytes: maxMetadata + 1<<10,
		MaxPayloads:     1,
		MaxTensors:      1,
		PayloadBytes:    maxHeader,
		TensorBytes:     tensorBytes,
		MessageBytes:    max(tensorBytes, maxHeader),
		UnadmittedBytes: 64 << 20, // until the offer of a sender is accepted
	}
}

// encode returns a message with v, as JSON, as its metadata. It fails if the metadata would be
// larger than the protocol allows.
func encode(v any) (*pipe.Message, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(text) > maxMetadata {
		return nil, fmt.Errorf("the names need a message of %d bytes, the limit is %d: send fewer files at once", len(text), maxMetadata)
	}
	return &pipe.Message{Metadata: text}, nil
}

// encodeTensor returns a message with v as its metadata and data as its only tensor. The message
// refers to the memory of data.
func encodeTensor(v tensorHead, data device.Buffer) (*pipe.Message, error) {
	m, err := encode(senderMessage{Tensor: &v})
	if err != nil {
		return nil, err
	}
	m.Tensors = []pipe.Tensor{{Buffer: data, TargetDevice: device.CPU()}}
	return m, nil
}

// decode decodes the metadata of a message into v. The error matches ErrProtocol.
func decode(d *pipe.Descriptor, v any) error {
	if err := json.Unmarshal(d.Metadata, v); err != nil {
		return protocolErrorf("a message without valid metadata: %w", err)
	}
	return nil
}

// expectParts returns an error that matches ErrProtocol unless a message has these numbers of payloads
// and tensors.
func expectParts(d *pipe.Descriptor, payloads, tensors int) error {
	if len(d.Payloads) != payloads || len(d.Tensors) != tensors {
		return protocolErrorf("a message with %d payloads and %d tensors; want %d and %d",
			len(d.Payloads), len(d.Tensors), payloads, tensors)
	}
	return nil
}

// nextAnswer receives the next message of the receiver. The error is a *FaultError if that message
// reports a fault, matches ErrProtocol, or is that of the pipe or ctx.
func nextAnswer(ctx context.Context, p *pipe.Pipe) (receiverMessage, error) {
	in, err := p.Next(ctx)
	if err != nil {
		return receiverMessage{}, err
	}
	var a receiverMessage
	if err := decode(in.Descriptor(), &a); err != nil {
		return a, err
	}
	if err := expectParts(in.Descriptor(), 0, 0); err != nil {
		return a, err
	}
	if err := in.Discard(ctx); err != nil { // there are no parts
		return a, err
	}
	if a.Fault != "" {
		return a, &FaultError{Text: a.Fault[:min(len(a.Fault), maxFault)]}
	}
	return a, nil
}
