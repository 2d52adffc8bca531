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
	Metrics        []Metric     // of the extensions, by name; at most MaxMetrics. Older workers send none
}

// Metric is a number of an extension.
type Metric struct {
	_     struct{} `tensorpipe:"agent.metric"`
	Name  string
	Value int64
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

// Bounds of a Status: of its pipes, its metrics, and the bytes in the name of a metric.
const (
	MaxPipes      = 1024
	MaxMetrics    = 256
	MaxMetricName = 128
)

// statusLimits bounds the memory for the status of a worker.
var statusLimits = codec.Limits{MaxDepth: 8, Bytes: 4 << 20, MemoryBytes: 16 << 20, MaxElements: 16 * MaxPipes}

// EncodeStatus returns the encoding of s, which belongs to the caller. The error is that of the
// codec, or matches codec.ErrLimit if DecodeStatus would reject s because of its size or its number
// of pipes or metrics; the bytes are then nil.
func EncodeStatus(s *Status) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", codec.ErrLimit, err)
	}
	return encode(s, statusLimits)
}

// check returns an error if s has too many pipes or metrics, or a name that is too long.
func (s *Status) check() error {
	if len(s.Pipes) > MaxPipes || len(s.Metrics) > MaxMetrics {
		return fmt.Errorf("%d pipes and %d metrics, at most %d and %d", len(s.Pipes), len(s.Metrics), MaxPipes, MaxMetrics)
	}
	for _, m := range s.Metrics {
		if len(m.Name) > MaxMetricName {
			return fmt.Errorf("a metric with a name of %d bytes, at most %d", len(m.Name), MaxMetricName)
		}
	}
	return nil
}

// DecodeStatus decodes message, which EncodeStatus has encoded. The result shares no memory with
// message. The error matches ErrProtocol; the result is then nil.
func DecodeStatus(message []byte) (*Status, error) {
	s := new(Status)
	err := decode(message, s, statusLimits)
	if err == nil {
		err = s.check()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return s, nil
}
