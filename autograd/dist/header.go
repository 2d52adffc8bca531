package dist

import (
	"encoding/binary"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// headerName is the name of the header of messages within a Context: all requests, and replies with
// Variables that require gradients.
const headerName = "dist.context"

// messageHeader is the header, as it is parsed.
type messageHeader struct {
	context     ID
	message     uint64 // the number of the message, 0 if it has no node
	answers     uint64 // of a reply: the number of the request that the function has served
	creator     agent.Incarnation
	records     bool   // of a request: the function records a graph
	creatorName []byte // a part of the message
}

const (
	headerSize          = 24 + len(agent.Incarnation{}) + 1 // without the name
	maxCreatorName      = 1 << 10
	flagRecords    byte = 1
)

// header returns the header of a message that is sent.
func (o *outgoing) header() []byte {
	c := o.context
	data := make([]byte, 0, headerSize+len(c.creatorName))
	data = binary.LittleEndian.AppendUint64(data, uint64(c.id))
	data = binary.LittleEndian.AppendUint64(data, o.message)
	data = binary.LittleEndian.AppendUint64(data, o.answers)
	data = append(data, c.creator[:]...)
	flags := byte(0)
	if o.records {
		flags = flagRecords
	}
	return append(append(data, flags), c.creatorName...)
}

// parseHeader parses a header. The error matches agent.ErrProtocol.
func parseHeader(data []byte) (h messageHeader, err error) {
	if len(data) < headerSize || len(data) > headerSize+maxCreatorName {
		return h, fmt.Errorf("%w: the header %s has %d bytes", agent.ErrProtocol, headerName, len(data))
	}
	h.context = ID(binary.LittleEndian.Uint64(data))
	h.message = binary.LittleEndian.Uint64(data[8:])
	h.answers = binary.LittleEndian.Uint64(data[16:])
	copy(h.creator[:], data[24:])
	h.records = data[headerSize-1]&flagRecords != 0
	h.creatorName = data[headerSize:]
	return h, nil
}
