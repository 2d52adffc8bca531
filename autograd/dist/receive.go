package dist

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
)

// received finds the Context of a message that was received, which it adds for a request if this worker
// does not have it yet. The context of a request gets the engine of Options.
func (g *Autograd) received(ctx context.Context, m *agent.Message) (context.Context, error) {
	data, ok := m.Header(headerName)
	if m.Kind != agent.KindRequest {
		return ctx, g.receivedReply(ctx, m, data, ok)
	}
	if g.options.Engine != nil {
		ctx = autograd.WithEngine(ctx, g.options.Engine)
	}
	if !ok {
		return ctx, nil
	}
	h, err := parseHeader(data)
	if err != nil {
		return ctx, err
	}
	c, err := g.contextFor(h.context, h.creator, h.creatorName, peerOf(m))
	if err != nil {
		return ctx, err
	}
	if !h.records {
		ctx = autograd.NoGrad(ctx)
	}
	handler := &handlerContext{ctx, incoming{context: c, message: h.message}}
	m.SetState(incomingKey{}, &handler.in)
	return handler, nil
}

// receivedReply finds the Context of a reply, or a failure, which must be that of the call.
func (g *Autograd) receivedReply(ctx context.Context, m *agent.Message, data []byte, ok bool) error {
	c := FromContext(ctx)
	if c != nil && c.autograd != g {
		c = nil
	}
	if !ok {
		if c != nil && m.Kind == agent.KindReply { // which must not have Variables that require gradients
			m.SetState(incomingKey{}, &incoming{context: c})
		}
		return nil
	}
	h, err := parseHeader(data)
	if err != nil {
		return err
	}
	if c == nil || c.id != h.context || c.creator != h.creator {
		return fmt.Errorf("%w: a reply in the autograd context %d, which is not that of the call", agent.ErrProtocol, uint64(h.context))
	}
	m.SetState(incomingKey{}, &incoming{context: c, message: h.message, answers: h.answers})
	return nil
}

// handlerContext is the context of the handler of a request within a Context.
type handlerContext struct {
	context.Context
	in incoming
}

// Value implements context.Context.
func (c *handlerContext) Value(key any) any {
	switch key.(type) {
	case contextKey:
		return c.in.context
	case incomingKey:
		return &c.in
	}
	return c.Context.Value(key)
}

// decoded records the Variables of a message that was received within a Context.
func (g *Autograd) decoded(_ context.Context, m *agent.Message) error {
	in, ok := m.State(incomingKey{}).(*incoming)
	if !ok || in.bytes == 0 && in.answers == 0 {
		return nil
	}
	if in.message == 0 && len(in.variables) > 0 {
		return fmt.Errorf("%w: Variables in a message without a number", agent.ErrProtocol)
	}
	c, from, message := in.context, peerOf(m), in.message
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check(); err != nil {
		return err
	}
	if len(in.variables) > 0 && c.receives[receiveKey{from.incarnation, message}] != nil {
		return fmt.Errorf("%w: message %d of %s", ErrRepeated, message, from.Name)
	}
	if err := c.renameSend(m.Call(), in.answers); err != nil {
		return err
	}
	if m.Kind == agent.KindRequest && from.incarnation != g.agent.Incarnation() {
		g.mu.Lock()
		err := g.charge(from, 0, in.bytes)
		g.mu.Unlock()
		if err != nil {
			return err
		}
		put(&c.charges, from.incarnation, c.charges[from.incarnation]+in.bytes)
	}
	if len(in.variables) > 0 {
		var opts []agent.CallOption
		if m.Kind == agent.KindRequest { // gradients take the way of a reply
			opts = append(opts, agent.WithReplyDevices())
		}
		var n *autograd.Node
		n = autograd.NewSource(receiveName, in.variables, func(ctx context.Context, grads []autograd.Value) error {
			return passOf(ctx).send(ctx, n, from, message, grads, opts...)
		})
		put(&c.receives, receiveKey{from.incarnation, message}, n)
	}
	return nil
}
