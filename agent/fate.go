package agent

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Fate is what becomes of a message instead of being sent, for tests of what calls
// do about it; see package faulty. The zero Fate changes nothing.
type Fate struct {
	Err   error         // sending it fails with this
	Drop  bool          // it is lost, and its sender does not notice
	Delay time.Duration // it leaves later; others may overtake it
	Extra int           // it is sent so many more times
}

// suffer has a message, which is about a call, meet its fate. It reports false if it is
// to be sent as usual.
func (c *conn) suffer(about *Message, sent *pipe.Message) (over bool, err error) {
	f := c.agent.outgoing(about)
	if f.Err != nil || f.Drop {
		return true, f.Err
	}
	n := f.Extra
	if f.Delay > 0 {
		n++
	}
	if n <= 0 {
		return false, nil
	}
	m, err := keep(sent)
	if err != nil {
		return true, err
	}
	// An agent that is closed has lost the message.
	c.agent.spawn(func() { c.sendKept(m, f.Delay, n) })
	return f.Delay > 0, nil
}

// sendKept sends a message n times, later.
func (c *conn) sendKept(m *pipe.Message, delay time.Duration, n int) {
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.down:
		return
	case <-c.agent.base.Done():
		return
	}
	for range n {
		// A pipe that breaks is the concern of its reader.
		if c.pipe.Write(c.agent.base, m) != nil {
			return
		}
	}
}

// keep copies a message, whose memory belongs to others once it has been sent.
func keep(m *pipe.Message) (*pipe.Message, error) {
	k := &pipe.Message{Metadata: bytes.Clone(m.Metadata), Payloads: slices.Clone(m.Payloads), Tensors: slices.Clone(m.Tensors)}
	for i := range k.Payloads {
		k.Payloads[i].Data = bytes.Clone(k.Payloads[i].Data)
	}
	for i := range k.Tensors {
		b := k.Tensors[i].Buffer
		if !b.IsHost() || b.Stream() != nil {
			return nil, fmt.Errorf("%w: a message with memory of %v cannot be kept", ErrArguments, b.Device())
		}
		k.Tensors[i].Buffer = device.Bytes(slices.Concat(b.AppendSegments(nil)...))
	}
	return k, nil
}
