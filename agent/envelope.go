package agent

import (
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// envelope is a message on its way out. It is used again and again.
type envelope struct {
	encoder *codec.Encoder
	message pipe.Message
	payload [1]pipe.Payload
	buf     []byte
	head    int  // bytes of the head
	large   int  // bytes of the tensors
	remote  bool // some of them are not on the host
	back    ways // of answers, see conn
	about   Message
}

// inlineBody is the largest body that travels in the metadata of the pipe's message.
const inlineBody = 16 << 10

// keepBody is the largest buffer that an envelope keeps for the next message.
const keepBody = 1 << 20

// envelopes hands out envelopes of one agent.
type envelopes struct{ pool sync.Pool }

func (p *envelopes) init(r *codec.Registry, limits codec.Limits) {
	p.pool.New = func() any { return &envelope{encoder: codec.NewEncoder(r, limits)} }
}

func (p *envelopes) get() *envelope { return p.pool.Get().(*envelope) }

// put takes back an envelope whose message has left, or never will.
func (p *envelopes) put(e *envelope) {
	e.message, e.payload, e.about, e.back = pipe.Message{}, [1]pipe.Payload{}, Message{}, nil
	if cap(e.buf) > keepBody {
		e.buf = nil
	}
	e.encoder.Reset(e.buf[:0])
	p.pool.Put(e)
}

// begin starts the body behind a head.
func (e *envelope) begin(head []byte) {
	e.buf, e.head = head, len(head)
	e.encoder.Reset(head)
}

// seal ends the message.
func (e *envelope) seal(d *devices) error {
	data, tensors, err := e.encoder.Finish()
	if err != nil {
		return err
	}
	return e.fill(data, tensors, d)
}

// fill makes data, which begins with the head, and the tensors the message. It sets the
// target devices of the tensors.
func (e *envelope) fill(data []byte, tensors []pipe.Tensor, d *devices) (err error) {
	e.buf = data
	e.message.Metadata = data
	if len(data)-e.head > inlineBody {
		data[flagsAt] |= flagPayload
		e.payload[0].Data = data[e.head:]
		e.message.Metadata, e.message.Payloads = data[:e.head], e.payload[:]
	}
	e.large, e.remote = 0, false
	for i := range tensors {
		src := tensors[i].Buffer.Device()
		if tensors[i].TargetDevice, err = e.target(d, src); err != nil {
			return err
		}
		e.remote = e.remote || src != device.CPU()
		e.large += tensors[i].Buffer.Len()
	}
	e.message.Tensors = tensors
	return nil
}

// bytes is what the message takes at the other end before anybody has asked for it.
func (e *envelope) bytes() int { return len(e.buf) + e.large }

// small reports whether the pipe takes the message at once, by a copy.
func (e *envelope) small() bool { return e.bytes() <= inlineTensors && !e.remote }

// inlineTensors is what may travel within a message of the pipe, and thus be taken
// off it without waiting.
const inlineTensors = 64 << 10
