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
//	offer      once, first: names and sizes of all files, and whether to resume
//	comparing  any number, before a file: the sender compares its file with the sums of "found"
//	file       starts the next file, in the order of the offer; its only payload holds
//	           the bytes of the file before the tensors. The receiver has the bytes
//	           before its offset "from" already
//	chunk      the next bytes of that file, as the only tensor of the message, with the
//	           target cpu:0. They end where a multiple of chunkBytes or the file ends
//	stop       the sender sends nothing more, because it was interrupted
//
// and those of the receiver
//
//	accepted  once, the answer to the offer; the sender waits for it
//	found     with resume, for each file, in the order of the offer: how many bytes the
//	          receiver has, and the CRC32C of each chunk of them
//	placed    for each file, in any order: it is complete, checked and has its final name
//	stopped   the answer to stop, and the last message: the part files that were kept
//	fault     the error that ends the transfer, as text
//
// With resume the sender waits for "found" before it starts a file. It compares the sums with its
// own file and sends what follows the chunks that are equal.
//
// After all files were placed both ends close the pipe. A sender that fails aborts the pipe
// with its reason.

// version is the protocol version. A receiver rejects offers of another version.
const version = 2

// chunkBytes is the size of a chunk in bytes. The bulk connection of a pipe sends that much at a time,
// so that chunks arrive in order.
const chunkBytes = 4 << 20

// Bounds of an offer. Both ends check them, so that a sender fails before it dials.
const (
	maxFiles    = 10_000
	maxHeader   = 16 << 20 // bytes before the tensors of a file
	maxFault    = 4 << 10  // bytes of text
	maxMetadata = 4 << 20  // bytes of a message's JSON
)

// senderMessage is the metadata of a message of the sender. Exactly one field is set.
type senderMessage struct {
	Offer     *offer     `json:"offer,omitempty"`
	Comparing bool       `json:"comparing,omitempty"`
	File      *fileHead  `json:"file,omitempty"`
	Chunk     *chunkHead `json:"chunk,omitempty"`
	Stop      *stop      `json:"stop,omitempty"`
}

type offer struct {
	Version int         `json:"version"`
	Resume  bool        `json:"resume,omitempty"`
	Files   []fileOffer `json:"files"`
}

// fileOffer describes one file of an offer: its name, which checkName must accept, and its size in
// bytes.
type fileOffer struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
}

type fileHead struct {
	File int    `json:"file"`   // index in the offer
	CRC  uint32 `json:"crc32c"` // of the payload
	From int    `json:"from,omitempty"`
}

type chunkHead struct {
	File   int    `json:"file"`
	Offset int    `json:"offset"`
	CRC    uint32 `json:"crc32c"`
}

type stop struct {
	Reason string `json:"reason"`
}

// receiverMessage is the metadata of a message of the receiver. Exactly one field is set.
type receiverMessage struct {
	Accepted bool        `json:"accepted,omitempty"`
	Found    *fileFound  `json:"found,omitempty"`
	Placed   *filePlaced `json:"placed,omitempty"`
	Stopped  *stopped    `json:"stopped,omitempty"`
	Fault    string      `json:"fault,omitempty"`
}

// fileFound describes what a receiver has of one file: the given number of bytes, which is that of
// the offer or a multiple of chunkBytes. Sums has four bytes for each chunk of them, its CRC32C in
// little endian.
type fileFound struct {
	File  int    `json:"file"`
	Bytes int    `json:"bytes"`
	Sums  []byte `json:"sums"`
}

type filePlaced struct {
	File int    `json:"file"`
	CRC  uint32 `json:"crc32c"` // of the whole file
}

type stopped struct {
	Kept []fileKept `json:"kept"`
}

type fileKept struct {
	File  int `json:"file"`
	Bytes int `json:"bytes"`
}

// Limits returns the limits for a pipe.Context at either end of transfers.
func Limits() pipe.Limits {
	return pipe.Limits{
		DescriptorBytes: maxMetadata + 1<<10,
		MaxPayloads:     1,
		MaxTensors:      1,
		PayloadBytes:    maxHeader,
		TensorBytes:     chunkBytes,
		MessageBytes:    maxHeader,
		UnadmittedBytes: 64 << 20, // until the offer of a sender is accepted
	}
}

// encode returns a message without parts whose metadata is v as JSON. It fails if the metadata is
// larger than the protocol allows, which means that an offer has too many files.
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

// encodeChunk returns a message with v as its metadata and data as its only tensor, for the target
// cpu:0. The message refers to the memory of data. The error is that of encoding v.
func encodeChunk(v chunkHead, data []byte) (*pipe.Message, error) {
	m, err := encode(senderMessage{Chunk: &v})
	if err != nil {
		return nil, err
	}
	m.Tensors = []pipe.Tensor{{Buffer: device.Bytes(data), TargetDevice: device.CPU()}}
	return m, nil
}

// decode decodes the metadata of the message that d describes, which is JSON, into the value that v
// points to. The error matches ErrProtocol and means that the JSON is invalid.
func decode(d *pipe.Descriptor, v any) error {
	if err := json.Unmarshal(d.Metadata, v); err != nil {
		return protocolErrorf("a message without valid metadata: %w", err)
	}
	return nil
}

// expectParts returns nil if the message that d describes has exactly the given numbers of payloads
// and tensors, and otherwise an error that matches ErrProtocol.
func expectParts(d *pipe.Descriptor, payloads, tensors int) error {
	if len(d.Payloads) != payloads || len(d.Tensors) != tensors {
		return protocolErrorf("a message with %d payloads and %d tensors; want %d and %d",
			len(d.Payloads), len(d.Tensors), payloads, tensors)
	}
	return nil
}

// nextAnswer waits for the next message of the receiver and returns its metadata. The error is a
// *FaultError if the message reports a fault, matches ErrProtocol if the message is invalid, or is
// that of the pipe or ctx.
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
