package dist

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// The names of the nodes, which are PyTorch's.
const (
	sendName    = "torch::distributed::autograd::SendRpcBackward"
	receiveName = "torch::distributed::autograd::RecvRpcBackward"
)

// sendNode is the node of a message with Variables that was sent.
type sendNode struct {
	node *autograd.Node
	to   peer
	text string // describes the message
}

// receiveNode is the node of a message with Variables that was received.
type receiveNode struct {
	node  *autograd.Node
	bytes int64 // of the Variables, if the message is a request
}

// peer is one incarnation of another worker, or of this one.
type peer struct {
	agent.WorkerInfo
	incarnation agent.Incarnation
}

func peerOf(m *agent.Message) peer { return peer{m.Peer, m.Incarnation()} }

// keys of the state of messages. incomingKey is also that of the request in the context of its handler.
type (
	outgoingKey struct{} // *outgoing
	incomingKey struct{} // *incoming
)

// outgoing is a message that is sent within a Context.
type outgoing struct {
	context   *Context
	records   bool // its Variables get a send node
	answers   uint64
	message   uint64
	variables []*autograd.Variable // that require gradients
}

// incoming is a message that was received within a Context.
type incoming struct {
	context   *Context
	answers   uint64
	message   uint64
	variables []*autograd.Variable
}

// encodeVariable encodes the tensor of a Variable, and whether it requires a gradient.
func encodeVariable(e *codec.Encoder, p **autograd.Variable) error {
	x := *p
	requires := x.RequiresGrad()
	if out, ok := e.State(outgoingKey{}).(*outgoing); ok {
		if requires = requires && out.records; requires {
			out.variables = append(out.variables, x)
		}
	}
	e.WriteBool(requires)
	t, s := x.Tensor(), x.Sparse()
	e.WriteBool(s != nil)
	if s != nil {
		return e.Encode(&s)
	}
	return e.Encode(&t)
}

// decodeVariable decodes a Variable. One that requires a gradient becomes a result of the receive node
// of the message or, outside a Context, a leaf that requires one.
func decodeVariable(d *codec.Decoder, p **autograd.Variable) error {
	requires, err := d.ReadBool()
	if err != nil {
		return err
	}
	isSparse, err := d.ReadBool()
	if err != nil {
		return err
	}
	var v autograd.Value
	if isSparse {
		var s *tensor.Sparse
		err = d.Decode(&s)
		v = autograd.Sparse(s)
	} else {
		var t *tensor.Tensor
		err = d.Decode(&t)
		v = autograd.Dense(t)
	}
	if err != nil {
		return err
	}
	if v.IsZero() {
		return fmt.Errorf("%w: a Variable without a tensor", agent.ErrProtocol)
	}
	x := autograd.New(v)
	*p = x
	if !requires {
		return nil
	}
	if in, ok := d.State(incomingKey{}).(*incoming); ok {
		in.variables = append(in.variables, x)
	}
	return x.RequireGrad()
}

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
		c.calls[call] = newOpenCall(m, out)
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
	out  *outgoing // the request
	text string
	done chan struct{} // of a call that creates a value, closed at its end
}

func newOpenCall(m *agent.Message, out *outgoing) openCall {
	c := openCall{out: out, text: fmt.Sprintf("the call of %s on %s", nameOf(m), m.Peer.Name)}
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
// value cannot know that the answer to such a call is late. The error is the cause of ctx.
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
		s := &sendNode{node: autograd.NewSink(sendName, out.variables), to: peerOf(m)}
		s.text = fmt.Sprintf("the result of %s for %s", nameOf(m), m.Peer.Name)
		if m.Kind == agent.KindRequest {
			s.text = fmt.Sprintf("the arguments of %s on %s", nameOf(m), m.Peer.Name)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if err := c.check(); err != nil {
			return err
		}
		for out.message == 0 || c.sends[out.message] != nil {
			out.message = uint64(uint16(g.self.Rank))<<rankShift | g.lastMessage.Add(1)&maxNumber
		}
		c.sends[out.message] = s
		c.order = append(c.order, out.message)
	} else if m.Kind != agent.KindRequest {
		return nil
	}
	m.SetHeader(headerName, out.header())
	return nil
}

// received finds the Context of a message that was received, which it adds for a request if this worker
// does not have it yet.
func (g *Autograd) received(ctx context.Context, m *agent.Message) (context.Context, error) {
	data, ok := m.Header(headerName)
	if m.Kind != agent.KindRequest {
		return ctx, g.receivedReply(ctx, m, data, ok)
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
	in := &incoming{context: c, message: h.message}
	m.SetState(incomingKey{}, in)
	if !h.records {
		ctx = autograd.NoGrad(ctx)
	}
	return &handlerContext{ctx, in}, nil
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
	in *incoming
}

// Value implements context.Context.
func (c *handlerContext) Value(key any) any {
	switch key.(type) {
	case contextKey:
		return c.in.context
	case incomingKey:
		return c.in
	}
	return c.Context.Value(key)
}

// decoded records the Variables of a message that was received within a Context.
func (g *Autograd) decoded(_ context.Context, m *agent.Message) error {
	in, ok := m.State(incomingKey{}).(*incoming)
	if !ok || len(in.variables) == 0 {
		return nil
	}
	if in.message == 0 {
		return fmt.Errorf("%w: Variables in a message without a number", agent.ErrProtocol)
	}
	c, from, message, r := in.context, peerOf(m), in.message, &receiveNode{}
	if m.Kind == agent.KindRequest && from.incarnation != g.agent.Incarnation() {
		for _, x := range in.variables {
			r.bytes += sizeOf(x.Value())
		}
	}
	r.node = autograd.NewSource(receiveName, in.variables, func(ctx context.Context, grads []autograd.Value) error {
		return passOf(ctx).send(ctx, r.node, from, message, grads)
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check(); err != nil {
		return err
	}
	if c.receives[receiveKey{from.incarnation, message}] != nil {
		return fmt.Errorf("%w: message %d of %s", ErrRepeated, message, from.Name)
	}
	if err := c.renameSend(m.Call(), in.answers); err != nil {
		return err
	}
	if r.bytes > 0 {
		g.mu.Lock()
		err := g.charge(from, 0, r.bytes)
		g.mu.Unlock()
		if err != nil {
			return err
		}
	}
	c.receives[receiveKey{from.incarnation, message}] = r
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
	c.sends[answers] = s
	c.order = append(c.order, answers)
	return nil
}

// sizeOf returns the number of bytes of the elements of v.
func sizeOf(v autograd.Value) int64 {
	if s := v.Sparse(); s != nil {
		return int64(s.Values().ByteSize() + s.Indices().ByteSize())
	}
	return int64(v.Tensor().ByteSize())
}
