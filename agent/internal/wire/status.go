package wire

import (
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
)

// Status is what a worker does. A worker sends it after Done, as the metadata of a message, at the
// end of a handshake whose Hello has an empty name in From: the other end is no member of the group,
// has proved that it knows the token, and only wants to know the status.
type Status struct {
	_              struct{}     `tensorpipe:"agent.status"`
	Calls, Serving int          // calls of this worker that have not ended; requests that it serves
	Sent, Received uint64       // bytes of payloads and tensors since it joined, also in pipes that have ended
	Pipes          []PipeStatus // to other members, by rank; at most MaxPipes
}

// PipeStatus is one pipe of a worker.
type PipeStatus struct {
	_              struct{} `tensorpipe:"agent.pipeStatus"`
	Worker         string   // the other end
	Rank           int
	Address, Path  string // of the other end; transport and channel
	Calls, Serving int    // calls of the worker to the other end, and requests of the other end, in progress
	Sent, Received uint64 // bytes of payloads and tensors
}

// MaxPipes bounds the pipes in a Status.
const MaxPipes = 1024

// statusLimits bounds the memory for the status of a worker.
var statusLimits = codec.Limits{MaxDepth: 8, Bytes: 4 << 20, MemoryBytes: 16 << 20, MaxElements: 16 * MaxPipes}

// EncodeStatus returns the encoding of s, which belongs to the caller. The error is that of the
// codec, or matches codec.ErrLimit if DecodeStatus would reject s because of its size or its number
// of pipes; the bytes are then nil.
func EncodeStatus(s *Status) ([]byte, error) {
	if len(s.Pipes) > MaxPipes {
		return nil, fmt.Errorf("%w: %d pipes, at most %d", codec.ErrLimit, len(s.Pipes), MaxPipes)
	}
	return encode(s, statusLimits)
}

// DecodeStatus decodes message, which EncodeStatus has encoded. The result shares no memory with
// message. The error matches ErrProtocol; the result is then nil.
func DecodeStatus(message []byte) (*Status, error) {
	s := new(Status)
	err := decode(message, s, statusLimits)
	if err == nil && len(s.Pipes) > MaxPipes {
		err = fmt.Errorf("%d pipes", len(s.Pipes))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return s, nil
}
