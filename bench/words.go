package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// The two ends agree in words, messages of metadata only, on what comes next.
// The client announces a batch with an order; the server answers "ready". To
// echo is to send each message back from the memory that it was read into; a sink
// only reads. Behind the last message comes "done CPU_NS", which ends the clock
// of a client that sends to a sink. CPU_NS is what the server used from "ready"
// until then. When its clock stands the client says "check", and a sink looks at
// every byte and says "checked" or "error TEXT". The C++ server speaks the same
// way (server.cc).
const (
	kindEcho = "echo"
	kindSink = "sink"

	wordReady   = "ready"
	wordDone    = "done"
	wordCheck   = "check"
	wordChecked = "checked"
	wordError   = "error"
)

// order announces a batch.
type order struct {
	kind        string
	messages    int
	first       int // number of the first message
	size, depth int
	named       bool
}

func (o order) String() string {
	named := 0
	if o.named {
		named = 1
	}
	return fmt.Sprint(o.kind, " ", o.messages, " ", o.first, " ", o.size, " ", o.depth, " ", named)
}

// parseOrder reads what String wrote, and refuses orders that would take more
// memory than a batch may.
func parseOrder(text string) (order, error) {
	var o order
	var named int
	if _, err := fmt.Sscan(text, &o.kind, &o.messages, &o.first, &o.size, &o.depth, &named); err != nil {
		return o, fmt.Errorf("%w: order %q", ErrProtocol, text)
	}
	o.named = named != 0
	known := o.kind == kindEcho || o.kind == kindSink
	fits := o.messages > 0 && o.messages <= 2*batchMessages && o.size >= 0 && o.size <= maxBatchBytes/o.messages
	if !known || !fits || o.depth < 1 || o.depth > batchMessages {
		return o, fmt.Errorf("%w: order %q", ErrProtocol, text)
	}
	return o, nil
}

// say writes words.
func say(p *pipe.Pipe, words string) error {
	return p.Write(context.Background(), &pipe.Message{Metadata: []byte(words)})
}

// hear reads words.
func hear(p *pipe.Pipe) (string, error) {
	in, err := p.Next(context.Background())
	if err != nil {
		return "", err
	}
	if d := in.Descriptor(); len(d.Tensors)+len(d.Payloads) > 0 {
		return "", fmt.Errorf("%w: a message where words should be", ErrProtocol)
	}
	words := string(in.Descriptor().Metadata)
	return words, in.Read(context.Background(), pipe.Allocation{})
}

// expect reads a word.
func expect(p *pipe.Pipe, word string) error {
	words, err := hear(p)
	if err != nil || words == word {
		return err
	}
	if text, found := strings.CutPrefix(words, wordError+" "); found {
		return fmt.Errorf("%w: the server says: %s", ErrCorrupt, text)
	}
	return fmt.Errorf("%w: %q where %q should be", ErrProtocol, words, word)
}

// expectDone reads "done CPU_NS" and returns the time.
func expectDone(p *pipe.Pipe) (time.Duration, error) {
	words, err := hear(p)
	if err != nil {
		return 0, err
	}
	text, found := strings.CutPrefix(words, wordDone+" ")
	ns, err := strconv.ParseInt(text, 10, 64)
	if !found || err != nil {
		return 0, fmt.Errorf("%w: %q where %q should be", ErrProtocol, words, wordDone)
	}
	return time.Duration(ns), nil
}
