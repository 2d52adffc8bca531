package wire

import (
	"encoding/binary"
	"fmt"
)

// The types of the requests that open a stream. The name of the request is that of the function.
const (
	StreamServer = "agent.stream.server" // the called worker sends data
	StreamClient = "agent.stream.client" // the caller sends data
	StreamBidi   = "agent.stream.bidi"   // both send data
)

// StreamOverhead is what each data message counts for the credit of a stream in addition to the
// bytes of its head, its body and its tensors.
const StreamOverhead = 512

// StreamThreshold bounds the credit that an end needs to send data: a message of n bytes, counted
// with StreamOverhead, may be sent if the credit is at least min(n, StreamThreshold). The credit
// may so become negative, by one message of any size. The windows of receivers are at least twice
// as large.
const StreamThreshold = 32 << 10

// Headers of the messages of streams, as in codec.Encoder.SetHeader. Each holds one uvarint.
const (
	WindowHeader = "agent.window" // of a request: the first credit of the called worker, in bytes
	CountHeader  = "agent.count"  // of a reply or failure: the number of data that the called worker has sent
)

// AppendNumber appends the value n of a header to dst, and returns the extended slice.
func AppendNumber(dst []byte, n uint64) []byte { return binary.AppendUvarint(dst, n) }

// ParseNumber decodes the value of the header with this name. The error matches ErrProtocol; the
// number is then 0.
func ParseNumber(name string, data []byte) (uint64, error) {
	n, size := binary.Uvarint(data)
	if size <= 0 || size != len(data) {
		return 0, fmt.Errorf("%w: header %s of %d bytes is no number", ErrProtocol, name, len(data))
	}
	return n, nil
}
