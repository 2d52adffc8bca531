package dist

import (
	"cmp"
	"context"
	"encoding/binary"
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
	node *autograd.Node
}

// peer is one incarnation of another worker, or of this one.
type peer struct {
	agent.WorkerInfo
	incarnation agent.Incarnation
}

func peerOf(m *agent.Message) peer { return peer{m.Peer, m.Incarnation()} }

// header is the name of the data that messages within a Context have: its number and the incarnation of
// its creator, the number of the message, or 0 if it has no node, and the creator's name.
const header = "dist.context"

// keys of the state of messages
type (
	outgoingKey struct{} // *outgoing
	incomingKey struct{} // *incoming
)

// outgoing is a message that is sent within a Context.
type outgoing struct {
	context   *Context
	message   uint64
	variables []*autograd.Variable // that require gradients
}

// incoming is a message that was received within a Context.
type incoming struct {
	context   *Context
	message   uint64
	variables []*autograd.Variable
}

// encodeVariable encodes the tensor of a Variable, and whether it requires a gradient.
func encodeVariable(e *codec.Encoder, p **autograd.Variable) error {
	x := *p
	if out, ok := e.State(outgoingKey{}).(*outgoing); ok && x.RequiresGrad() {
		out.variables = append(out.variables, x)
	}
	e.WriteBool(x.RequiresGrad())
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
	out := &outgoing{context: c}
	m.SetState(outgoingKey{}, out)
	request, call := m.Kind == agent.KindRequest, m.Call()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check(); err != nil {
		if request {
			return err
		}
		return nil // the reply of a function that did not notice
	}
	if request {
		if m.Incarnation() != g.agent.Incarnation() {
			c.known[m.Incarnation()] = m.Peer
		}
		c.calls[call] = newOpenCall(m)
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
		delete(c.sends, message)
		c.order = slices.DeleteFunc(c.order, func(n uint64) bool { return n == message })
	}
}

// openCall is a call within a Context that is under way.
type openCall struct {
	text string
	done chan struct{} // of a call that creates a value, closed at its end
}

func newOpenCall(m *agent.Message) openCall {
	c := openCall{text: fmt.Sprintf("the call of %s on %s", nameOf(m), m.Peer.Name)}
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
		out.message = uint64(uint16(g.self.Rank))<<rankShift | g.lastMessage.Add(1)&maxNumber
		s := &sendNode{node: autograd.NewSink(sendName, out.variables), to: peerOf(m)}
		s.text = fmt.Sprintf("the result of %s for %s", nameOf(m), m.Peer.Name)
		if m.Kind == agent.KindRequest {
			s.text = fmt.Sprintf("the arguments of %s on %s", nameOf(m), m.Peer.Name)
		}
		c.mu.Lock()
		if c.closed == nil {
			c.sends[out.message] = s
			c.order = append(c.order, out.message)
		}
		c.mu.Unlock()
	} else if m.Kind != agent.KindRequest {
		return nil
	}
	data := make([]byte, 0, 64)
	data = binary.LittleEndian.AppendUint64(data, uint64(c.id))
	data = binary.LittleEndian.AppendUint64(data, out.message)
	data = append(data, c.creator[:]...)
	m.SetHeader(header, append(data, c.creatorName...))
	return nil
}

// received finds the Context of a message that was received, which it adds for a request if this worker
// does not have it yet.
func (g *Autograd) received(ctx context.Context, m *agent.Message) (context.Context, error) {
	data, ok := m.Header(header)
	if !ok {
		return ctx, nil
	}
	var creator agent.Incarnation
	if len(data) < 16+len(creator) {
		return ctx, fmt.Errorf("%w: the header %s has %d bytes", agent.ErrProtocol, header, len(data))
	}
	id := ID(binary.LittleEndian.Uint64(data))
	in := &incoming{message: binary.LittleEndian.Uint64(data[8:])}
	name := string(data[16+copy(creator[:], data[16:]):])
	if m.Kind != agent.KindRequest {
		c := FromContext(ctx)
		if c == nil || c.id != id || c.creator != creator {
			return ctx, fmt.Errorf("%w: a reply in the autograd context %d, which is not that of the call", agent.ErrProtocol, uint64(id))
		}
		in.context = c
		m.SetState(incomingKey{}, in)
		return ctx, nil
	}
	c, err := g.contextFor(id, creator, name)
	if err != nil {
		return ctx, err
	}
	in.context = c
	m.SetState(incomingKey{}, in)
	return c.In(ctx), nil
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
	c := in.context
	bytes := int64(0)
	for _, x := range in.variables {
		bytes += sizeOf(x.Value())
	}
	if err := g.charge(c, bytes); err != nil {
		return err
	}
	r, from, message := &receiveNode{}, peerOf(m), in.message
	r.node = autograd.NewSource(receiveName, in.variables, func(ctx context.Context, grads []autograd.Value) error {
		return passOf(ctx).send(ctx, r.node, from, message, grads)
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check(); err != nil {
		return err
	}
	c.receives[message] = r
	c.bytes += bytes
	return nil
}

// sizeOf returns the number of bytes of the elements of v.
func sizeOf(v autograd.Value) int64 {
	if s := v.Sparse(); s != nil {
		return int64(s.Values().ByteSize() + s.Indices().ByteSize())
	}
	return int64(v.Tensor().ByteSize())
}
