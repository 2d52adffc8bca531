package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// The two ends exchange control messages, which have metadata only. The client announces a batch with a
// batchCommand, and the server replies "ready". In an echo batch the server sends each message back from
// the memory into which it was read; in a sink batch it only reads. After the last message it sends
// "done CPU_NS", at which a client that sends to a sink stops its clock. CPU_NS is the CPU time of the
// server since "ready". The client then sends "check" to a sink, which compares every byte and replies
// "checked" or "error TEXT". The C++ server uses the same protocol (server.cc), except for a timed batch,
// an echo batch after which the server also sends the times at which it had read the messages.
const (
	kindEcho  = "echo"
	kindTimed = "timed"
	kindSink  = "sink"

	ctlReady   = "ready"
	ctlDone    = "done"
	ctlCheck   = "check"
	ctlChecked = "checked"
	ctlError   = "error"
)

// batchCommand is the control message with which the client announces a batch.
type batchCommand struct {
	kind        string
	messages    int
	first       int // number of the first message
	size, depth int
	named       bool
}

func (c batchCommand) String() string {
	named := 0
	if c.named {
		named = 1
	}
	return fmt.Sprint(c.kind, " ", c.messages, " ", c.first, " ", c.size, " ", c.depth, " ", named)
}

// parseBatchCommand decodes text, which batchCommand.String has made. The error matches ErrProtocol
// if the text is invalid, or if the batch would have too many messages or take more than
// maxBatchBytes.
func parseBatchCommand(text string) (batchCommand, error) {
	var c batchCommand
	var named int
	if _, err := fmt.Sscan(text, &c.kind, &c.messages, &c.first, &c.size, &c.depth, &named); err != nil {
		return c, fmt.Errorf("%w: batch command %q", ErrProtocol, text)
	}
	c.named = named != 0
	known := c.kind == kindEcho || c.kind == kindTimed || c.kind == kindSink
	fits := c.messages > 0 && c.messages <= 2*batchMessages && c.size >= 0 && c.size <= maxBatchBytes/c.messages
	if !known || !fits || c.depth < 1 || c.depth > batchMessages {
		return c, fmt.Errorf("%w: batch command %q", ErrProtocol, text)
	}
	return c, nil
}

// sendControl writes a message with text as its metadata, and returns the error of the pipe once
// the message is sent.
func sendControl(p *pipe.Pipe, text string) error {
	return p.Write(context.Background(), &pipe.Message{Metadata: []byte(text)})
}

// receiveControl reads the next message and returns its metadata. The error matches ErrProtocol if
// the message has tensors or payloads, and otherwise is that of the pipe.
func receiveControl(p *pipe.Pipe) (string, error) {
	in, err := p.Next(context.Background())
	if err != nil {
		return "", err
	}
	if d := in.Descriptor(); len(d.Tensors)+len(d.Payloads) > 0 {
		return "", fmt.Errorf("%w: a message instead of a control message", ErrProtocol)
	}
	text := string(in.Descriptor().Metadata)
	return text, in.Read(context.Background(), pipe.Allocation{})
}

// expect receives a control message and returns nil if its text equals want. The error matches
// ErrCorrupt if the message is an error report of the server, and ErrProtocol if it is any other
// message. Otherwise the error is that of the pipe.
func expect(p *pipe.Pipe, want string) error {
	text, err := receiveControl(p)
	if err != nil || text == want {
		return err
	}
	if text, found := strings.CutPrefix(text, ctlError+" "); found {
		return fmt.Errorf("%w: the server reports: %s", ErrCorrupt, text)
	}
	return fmt.Errorf("%w: %q instead of %q", ErrProtocol, text, want)
}

// sendTimes sends times, in nanoseconds since 1970, as a control message. The error is that of the pipe.
func sendTimes(p *pipe.Pipe, times []int64) error {
	text, err := json.Marshal(times)
	if err != nil {
		return err
	}
	return sendControl(p, string(text))
}

// expectTimes receives the message of sendTimes. The error matches ErrProtocol for any other message, or
// is that of the pipe.
func expectTimes(p *pipe.Pipe) (times []int64, err error) {
	text, err := receiveControl(p)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(text), &times); err != nil {
		return nil, fmt.Errorf("%w: %.80q instead of times: %w", ErrProtocol, text, err)
	}
	return times, nil
}

// expectDone receives the control message "done CPU_NS" and returns CPU_NS, the CPU time of the
// server. The error matches ErrProtocol for any other message, or is that of the pipe.
func expectDone(p *pipe.Pipe) (time.Duration, error) {
	text, err := receiveControl(p)
	if err != nil {
		return 0, err
	}
	number, found := strings.CutPrefix(text, ctlDone+" ")
	ns, err := strconv.ParseInt(number, 10, 64)
	if !found || err != nil {
		return 0, fmt.Errorf("%w: %q instead of %q", ErrProtocol, text, ctlDone)
	}
	return time.Duration(ns), nil
}
