package dist

import (
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// The names of the nodes, which are PyTorch's.
const (
	sendName    = "torch::distributed::autograd::SendRpcBackward"
	receiveName = "torch::distributed::autograd::RecvRpcBackward"
)

// sendNode is the node of a message with Variables that was sent.
type sendNode struct {
	node    *autograd.Node
	to      peer
	request bool   // the message is one, and not a reply
	name    string // of the function
}

// String describes the message.
func (s *sendNode) String() string {
	if s.request {
		return fmt.Sprintf("the arguments of %s on %s", s.name, s.to.Name)
	}
	return fmt.Sprintf("the result of %s for %s", s.name, s.to.Name)
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
	variables []*autograd.Variable // that require gradients
	bytes     int64                // of all Variables, see sizeOf
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
	in, ok := d.State(incomingKey{}).(*incoming)
	if ok {
		in.bytes += sizeOf(v)
	}
	if !requires {
		return nil
	}
	if ok {
		in.variables = append(in.variables, x)
	}
	return x.RequireGrad()
}

// variableBytes is what a Variable takes beside its elements, with its part of a node.
const variableBytes = 1 << 10

// sizeOf returns the number of bytes that a received Variable with the data v may keep in a Context.
func sizeOf(v autograd.Value) int64 {
	if s := v.Sparse(); s != nil {
		return variableBytes + int64(s.Values().ByteSize()+s.Indices().ByteSize())
	}
	return variableBytes + int64(v.Tensor().ByteSize())
}
