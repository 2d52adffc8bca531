package dist

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// encoding begins a message that is sent within a Context.
func (g *Autograd) encoding(ctx context.Context, m *agent.Message) error {
	c := FromContext(ctx)
	if c == nil || c.autograd != g {
		return nil
	}
	out := &outgoing{context: c, records: autograd.IsGradEnabled(ctx)}
	m.SetState(outgoingKey{}, out)
	request, call := m.Kind == agent.KindRequest, m.Call()
	if in, ok := ctx.Value(incomingKey{}).(*incoming); ok && !request {
		out.answers = in.message
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check(); err != nil {
		if request {
			return err
		}
		return nil // the reply of a function that did not notice
	}
	if request {
		c.meet(peerOf(m), true)
		put(&c.calls, call, newOpenCall(m, out))
	}
	m.OnEnd(func(end agent.MessageEnd) { c.sent(call, request, out.message, end) })
	return nil
}

// sent is called when a message of c has ended that was sent. The send node of a request that has no
// result, or of a reply that was not sent, is dropped: no gradients come for it.
func (c *Context) sent(call agent.CallKey, request bool, message uint64, end agent.MessageEnd) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if request {
		c.calls[call].close()
		delete(c.calls, call)
	}
	if message != 0 && (end.Outcome == agent.MessageUnsent || request && (end.Outcome != agent.MessageAnswered || end.Err != nil)) {
		c.dropSend(message)
	}
}

// dropSend removes a send node. The caller holds c.mu.
func (c *Context) dropSend(message uint64) {
	delete(c.sends, message)
	c.order = slices.DeleteFunc(c.order, func(n uint64) bool { return n == message })
}

// openCall is a call within a Context that is under way.
type openCall struct {
	out      *outgoing     // the request
	name, to string        // of the function, and of the worker
	done     chan struct{} // of a call that creates a value, closed at its end
}

// String describes the call.
func (c openCall) String() string { return fmt.Sprintf("the call of %s on %s", c.name, c.to) }

func newOpenCall(m *agent.Message, out *outgoing) openCall {
	c := openCall{out: out, name: nameOf(m), to: m.Peer.Name}
	if rref.CreatesValue(m.Type) {
		c.done = make(chan struct{})
	}
	return c
}

// close records that the call has ended.
func (c openCall) close() {
	if c.done != nil {
		close(c.done)
	}
}

// awaitCreations waits until no call is under way that creates a value: a program that has fetched the
// value cannot know that the answer to such a call is late. The error is the cause of ctx, or matches
// ErrNoContext if c is closed.
func (c *Context) awaitCreations(ctx context.Context) error {
	for {
		var done chan struct{}
		c.mu.Lock()
		for _, call := range c.calls {
			done = cmp.Or(done, call.done)
		}
		c.mu.Unlock()
		if done == nil {
			return nil
		}
		select {
		case <-done:
		case <-c.end:
			return c.id.missing()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// nameOf returns the name of the function or operator that m calls, or the type of m if it has no name.
func nameOf(m *agent.Message) string { return cmp.Or(m.Name, m.Type) }

// encoded records the Variables of a message within a Context, and adds the header.
func (g *Autograd) encoded(_ context.Context, m *agent.Message) error {
	out, ok := m.State(outgoingKey{}).(*outgoing)
	if !ok {
		return nil
	}
	c := out.context
	if len(out.variables) > 0 {
		s := &sendNode{node: autograd.NewSink(sendName, out.variables), to: peerOf(m), request: m.Kind == agent.KindRequest, name: nameOf(m)}
		c.mu.Lock()
		defer c.mu.Unlock()
		if err := c.check(); err != nil {
			return err
		}
		for out.message == 0 || c.sends[out.message] != nil {
			out.message = uint64(uint16(g.self.Rank))<<rankShift | g.lastMessage.Add(1)&maxNumber
		}
		put(&c.sends, out.message, s)
		c.order = append(c.order, out.message)
	} else if m.Kind != agent.KindRequest && out.answers == 0 {
		return nil
	}
	m.SetHeader(headerName, out.header())
	return nil
}

// renameSend gives the send node of the request of a call the number answers, which is that of the request
// that the function has served: if it is served WithOnce, an earlier attempt whose reply was lost. The
// arguments are the same. The error matches ErrRepeated if that request has a send node: it belongs to
// another call, with the same key. The caller holds c.mu.
func (c *Context) renameSend(call agent.CallKey, answers uint64) error {
	open := c.calls[call]
	if open.out == nil || open.out.message == 0 || answers == 0 || open.out.message == answers {
		return nil
	}
	if c.sends[answers] != nil {
		return fmt.Errorf("%w: the reply to request %d, for which there are gradients", ErrRepeated, answers)
	}
	s := c.sends[open.out.message]
	if s == nil {
		return nil // it was dropped
	}
	c.dropSend(open.out.message)
	open.out.message = answers
	put(&c.sends, answers, s)
	c.order = append(c.order, answers)
	return nil
}
