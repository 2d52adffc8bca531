package agent

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/streampool"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

const (
	// maxInlineBytes bounds the tensors of a message that the pipe copies into its stream,
	// and that the peer reads from there without waiting.
	maxInlineBytes = 64 << 10

	// maxInlineBody bounds the body that is sent in the metadata of a pipe's message. A
	// larger one is its payload.
	maxInlineBody = 16 << 10

	// maxKeptBuffer bounds the buffer that an outMessage keeps for its next use.
	maxKeptBuffer = 1 << 20
)

// outMessage is a message to be sent. It is reused.
type outMessage struct {
	encoder     *codec.Encoder
	message     pipe.Message
	payload     [1]pipe.Payload
	buf         []byte
	head        int                // bytes of the head
	tensorBytes int                // bytes of the tensors
	remote      bool               // a tensor is not in host memory
	route       tensorRoute        // of the tensors
	streams     streampool.Message // of the tensors, one for each device
	view        Message
}

// outMessages is the pool of the outMessages of one agent.
type outMessages struct {
	pool    sync.Pool
	devices *devices
}

func (p *outMessages) get() *outMessage { return p.pool.Get().(*outMessage) }

// put returns a message that will not be sent to the pool. The message and its buffers must not be used
// after that.
func (p *outMessages) put(out *outMessage) { _ = p.sent(out, nil) }

// sent returns a message that was sent with the result err to the pool. The message and its buffers must
// not be used after that. It returns err or, if that is nil, the *future.StreamError or *PanicError of a
// stream that cannot wait for the copies of the tensors.
func (p *outMessages) sent(out *outMessage, err error) error {
	if len(p.devices.kinds) > 0 {
		err = cmp.Or(err, catchPanic(func() error { return out.streams.End(&p.devices.pool) }))
	}
	out.message, out.payload, out.view, out.route = pipe.Message{}, [1]pipe.Payload{}, Message{}, tensorRoute{}
	if cap(out.buf) > maxKeptBuffer {
		out.buf = nil
	}
	out.encoder.Reset(out.buf[:0])
	p.pool.Put(out)
	return err
}

// begin starts a message with head, whose memory the message takes over; the body is encoded
// after it into the same buffer.
func (out *outMessage) begin(head []byte) {
	out.buf, out.head = head, len(head)
	out.encoder.Reset(head)
}

// fill completes the pipe's message from data, which begins with the head, and from tensors, whose
// target devices and streams it sets; the copies of the tensors wait for the streams of ctx. The message shares both
// slices until it is returned to the pool. The error means that the device map has no device for a tensor, or is that
// of a stream; the message is then incomplete.
func (out *outMessage) fill(ctx context.Context, data []byte, tensors []pipe.Tensor, d *devices) (err error) {
	out.buf = data
	out.message.Metadata = data
	if len(data)-out.head > maxInlineBody {
		data[wire.FlagsAt] |= wire.FlagPayload
		out.payload[0].Data = data[out.head:]
		out.message.Metadata, out.message.Payloads = data[:out.head], out.payload[:]
	}
	out.tensorBytes, out.remote = 0, false
	for i := range tensors {
		src := tensors[i].Buffer.Device()
		if tensors[i].TargetDevice, err = out.target(d, src); err != nil {
			return err
		}
		out.remote = out.remote || src != device.CPU()
		out.tensorBytes += tensors[i].Buffer.Len()
	}
	out.message.Tensors = tensors
	if len(d.kinds) > 0 {
		return catchPanic(func() error { return out.orderTensors(ctx, tensors, d) })
	}
	return nil
}

// bytes returns the size of the message: head, body and tensors.
func (out *outMessage) bytes() int { return len(out.buf) + out.tensorBytes }

// small reports whether the message may be given to TryWrite: its head, body and tensors have at
// most maxInlineBytes, and all its tensors are in host memory.
func (out *outMessage) small() bool { return out.bytes() <= maxInlineBytes && !out.remote }

// tryWrite sends a message if that is possible without blocking, or if an injected fault replaces
// the sending. If done is true, err is the result of sending and the message is back in the pool.
// Otherwise err is nil, and the caller still owns the message and must send it.
func (c *conn) tryWrite(out *outMessage) (done bool, err error) {
	if c.agent.faultHook != nil {
		done, err = c.injectFault(&out.view, &out.message)
	}
	if !done && out.small() {
		done, err = c.pipe.TryWrite(&out.message)
	}
	if done = done || err != nil; done {
		err = c.agent.outMessages.sent(out, err)
	}
	return done, err
}

// write sends a message, waits until its memory is free, and returns it to the pool. The error is
// that of the pipe, of ctx, or of a stream, see outMessages.sent.
func (c *conn) write(ctx context.Context, out *outMessage) error {
	return c.agent.outMessages.sent(out, c.pipe.Write(ctx, &out.message))
}

// copyMessage returns a copy of a message that does not refer to memory of the original. Memory of a device is copied on
// the stream on which it is valid. The error matches ErrArguments for memory of an unknown kind, or host memory with a
// stream, or is that of the kind.
func copyMessage(m *pipe.Message, d *devices) (*pipe.Message, error) {
	k := &pipe.Message{Metadata: bytes.Clone(m.Metadata), Payloads: slices.Clone(m.Payloads), Tensors: slices.Clone(m.Tensors)}
	for i := range k.Payloads {
		k.Payloads[i].Data = bytes.Clone(k.Payloads[i].Data)
	}
	for i := range k.Tensors {
		b := k.Tensors[i].Buffer
		kind := d.kinds[b.Device().Kind]
		switch {
		case b.IsHost() && b.Stream() == nil:
			k.Tensors[i].Buffer = device.Bytes(slices.Concat(b.AppendSegments(nil)...))
			continue
		case b.IsHost() || kind == nil:
			return nil, fmt.Errorf("%w: a message with memory of %v cannot be copied", ErrArguments, b.Device())
		}
		to, err := kind.Alloc(b.Device(), b.Len(), b.Stream())
		if err == nil {
			err = kind.Copy(to, b)
		}
		if err != nil {
			return nil, err
		}
		k.Tensors[i].Buffer = to
	}
	return k, nil
}

// Fault is a fault that is injected in place of sending a message, in tests; see package
// faulty. The zero value injects none.
type Fault struct {
	Err   error         // sending fails with this error
	Drop  bool          // the message is lost; its sender gets no error
	Delay time.Duration // the message is sent later; others may overtake it
	Extra int           // how often the message is sent in addition
}

// injectFault asks Config.FaultHook for a fault and applies it to the message sent; about has the
// kind and the function of that message. If done is true, the caller must not send the message, and
// err is the result of sending: nil for a dropped or delayed message. If done is false, err is nil
// and the caller sends the message itself. Delayed and additional messages are copies, which
// another goroutine sends.
func (c *conn) injectFault(about *Message, sent *pipe.Message) (done bool, err error) {
	f := c.agent.faultHook(about)
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
	m, err := copyMessage(sent, c.agent.devices)
	if err != nil {
		return true, err
	}
	c.agent.spawn(func() { // does nothing if the agent is closed: the message is lost
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-c.down:
			return
		case <-c.agent.base.Done():
			return
		}
		for range n {
			if c.pipe.Write(c.agent.base, m) != nil { // the read loop handles errors of the pipe
				return
			}
		}
	})
	return f.Delay > 0, nil
}

// callOverhead is roughly the memory that a call takes at either end in addition to its
// message. It is part of the charge.
const callOverhead = 512

// batchThreshold is the number of calls in progress beyond which the pipe may send several
// small requests together instead of each at once.
const batchThreshold = 8

// send adds call, whose id must be set, to the table of pending calls and sends out, the request.
// It first waits until the connection's call budget has bytes for the request, unless a handler or
// an interceptor makes the call. send owns out, also after an error.
//
// send returns nil when the request was sent, or when the call has ended in another way, for
// example because the pipe has ended. For a large request of a call with an observer it returns nil
// earlier, and another goroutine sends the request. After an error the call has ended, and its
// observer is not called.
func (c *conn) send(ctx context.Context, call *call, out *outMessage) error {
	call.charge, call.sendBegun = 0, false
	call.requestSent.Store(false)
	call.unordered.Store(nil)
	if n := out.bytes() + callOverhead; !call.nested {
		if err := c.acquire(ctx, call, n); err != nil {
			c.agent.outMessages.put(out)
			return err
		}
		call.charge = n
	}
	call.requestBytes = out.bytes()
	inBackground := call.observer != nil && !out.small()
	if inBackground { // before other goroutines find the call in the table
		call.sendContext = call.withLimit(ctx)
		ctx = call.sendContext
		call.sendEnded = make(chan struct{})
	}
	call.outcome = MessageUncertain // from now on other goroutines may end the call
	pending, err := c.calls.add(call)
	if err != nil {
		call.outcome = MessageUnsent
		call.releaseCharge()
		call.endSend()
		c.agent.outMessages.put(out)
		return err
	}
	out.message.More = pending > batchThreshold
	if done, err := c.tryWrite(out); done {
		err = c.sendResult(ctx, call, err)
		call.endSend()
		return err
	}
	call.sendBegun = true
	if inBackground {
		go c.sendInBackground(ctx, call, out)
		return nil
	}
	defer beginWait(ctx)()
	limited := call.withLimit(ctx)
	defer limited.finish()
	return c.sendResult(limited, call, c.write(limited, out))
}

// sendInBackground sends out, the large request of a call that has an observer, and owns it. If
// sending fails and the call has not ended otherwise, it ends the call and calls the observer with
// the error.
func (c *conn) sendInBackground(ctx context.Context, call *call, out *outMessage) {
	err := c.sendResult(ctx, call, c.write(ctx, out))
	call.endSend()
	if err != nil {
		call.observer.callEnded(nil, err, nil)
	}
}

// acquire takes n bytes for a call from the call budget of the connection, and blocks until the
// budget has them. After an error nothing was taken. The error is the cause of ctx, a *TimeoutError
// after the limit of the call, or the reason for which the pipe has ended.
func (c *conn) acquire(ctx context.Context, call *call, n int) error {
	if c.callBudget.TryAcquire(n) {
		return nil
	}
	defer beginWait(ctx)()
	defer c.agent.outsideCalls.add(call, CallBlocked)()
	limited := call.withLimit(ctx)
	defer limited.finish()
	if c.callBudget.Acquire(limited, c.down, n) {
		return nil
	}
	if err := ctxerr.Cause(limited); err != nil {
		return err
	}
	// The pipe has ended, and its read loop may not have closed the table yet.
	return cmp.Or(c.calls.closeReason(), ErrUnreachable)
}

// sendResult handles err, the result of sending the request of call with ctx. If err is nil it
// marks the request as sent and returns nil. Otherwise it removes the call from the table, returns
// the call's bytes to the budget, and returns the error of the call: the cause of ctx if ctx has
// ended, and otherwise that of sendError. If the call was not in the table any more, it has ended in
// another way: sendResult returns nil, and a reply fails with the error of a stream.
func (c *conn) sendResult(ctx context.Context, call *call, err error) error {
	if err == nil {
		call.requestSent.Store(true)
		return nil
	}
	if isStreamError(err) {
		failed := err // so that err is not on the heap
		call.unordered.Store(&failed)
	}
	if c.calls.withdraw(call.id) == nil {
		return nil
	}
	call.releaseCharge()
	if cause := ctxerr.Cause(ctx); cause != nil {
		return cause
	}
	return c.sendError(err)
}
