package agent

import (
	"context"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
)

// Kind is the kind of a message of a call.
type Kind = wire.Kind

// The kinds of messages. Interceptors see all but KindCancel, Config.FaultHook sees all. Neither
// sees the values of a stream: only its request and the reply or failure that ends it.
const (
	KindRequest = wire.KindRequest // from the caller
	KindReply   = wire.KindReply   // to the caller: the result
	KindFailure = wire.KindFailure // to the caller: an error in place of a result
	KindCancel  = wire.KindCancel  // from the caller: no goroutine waits for the reply; carries no value
)

// Message is one message of a call, for interceptors and Config.FaultHook. It is valid until the
// interceptor or FaultHook returns.
type Message struct {
	Kind Kind
	Type string     // of the request, empty for the call of a function
	Name string     // of the function
	Peer WorkerInfo // the other end

	key     CallKey
	kept    bool           // see IsKept
	ends    *messageEnds   // nil if no function can be added any more
	encoder *codec.Encoder // of a message that is sent
	decoder *codec.Decoder // of a message that was received
	hold    func(context.Context) error
}

// State returns the value that SetState has stored under key in this message, or nil if there is
// none. Interceptors and the encodings of values share these values while the message is encoded or
// decoded.
func (m *Message) State(key any) any {
	switch {
	case m.encoder != nil:
		return m.encoder.State(key)
	case m.decoder != nil:
		return m.decoder.State(key)
	}
	return nil
}

// SetState stores value under key in this message, in place of an earlier value, for State. The
// message keeps value until it has been sent, or decoded and its interceptors have returned; value
// itself is not sent. key must be comparable, and should have a type that its package defines.
func (m *Message) SetState(key, value any) {
	switch {
	case m.encoder != nil:
		m.encoder.SetState(key, value)
	case m.decoder != nil:
		m.decoder.SetState(key, value)
	}
}

// SetHeader sets the header with this name, in place of an earlier one, in a message that is sent;
// it does nothing for a message that was received. The other end can read the header before it
// decodes a value. data is not copied, and must not change until the message was sent.
func (m *Message) SetHeader(name string, data []byte) {
	if m.encoder != nil {
		m.encoder.SetHeader(name, data)
	}
}

// Header returns the header of that name of a message that was received. ok is false if the
// message does not have it, or is one that is sent. data must not be changed, nor used after the
// interceptor has returned.
func (m *Message) Header(name string) (data []byte, ok bool) {
	if m.decoder == nil {
		return nil, false
	}
	return m.decoder.Header(name)
}

// Hold delays the handler of a request until wait has returned nil. If wait returns an error, the
// handler does not run, and the error is the reply. wait runs on a goroutine of its own with the
// context of the handler, and needs no slot of Config.MaxHandlers. Hold itself returns at once. If
// it is called several times, the waits run one after the other until one fails. Only
// Interceptor.Decoded may call Hold.
func (m *Message) Hold(wait func(context.Context) error) {
	first := m.hold
	if first == nil {
		m.hold = wait
		return
	}
	m.hold = func(ctx context.Context) error {
		if err := first(ctx); err != nil {
			return err
		}
		return wait(ctx)
	}
}

// Interceptor handles all messages of calls: requests, results and errors, sent and received,
// including calls of this worker to itself. Functions that are nil are skipped. An error fails the
// call. For messages that are sent the functions run in the order of Config.Interceptors, for
// messages that were received in the opposite order. A reply that is sent again, see WithOnce, is
// not passed to interceptors again.
//
// A function that keeps something for a message, or encodes something that the other end is to
// keep, learns what has become of the message by Message.OnEnd.
//
// The functions must not block. For messages that were received, and for replies, they may run on
// the goroutine that reads the messages of the peer, which can be that of a caller: the
// restrictions of WithShort on locks and on runtime.Goexit hold for them as well. They may make
// calls that return a future, with their context. Such calls do not wait for Limits.CallBytes;
// while one opens a pipe another goroutine reads messages.
type Interceptor struct {
	// Encoding runs before the values of a message are encoded. ctx is that of the call, or of
	// the handler that replies.
	Encoding func(ctx context.Context, m *Message) error

	// Encoded runs after the values are encoded.
	Encoded func(ctx context.Context, m *Message) error

	// Received runs before the values of a message are decoded. It must return the context
	// of the handler, ctx or one derived from it.
	Received func(ctx context.Context, m *Message) (context.Context, error)

	// Decoded runs after the values are decoded, and before the handler.
	Decoded func(ctx context.Context, m *Message) error
}

// leaderContext is the context of interceptors that handle a reply on the leader. Calls that
// these interceptors make do not wait for the call budget, because the messages that would
// release it may be queued after this one. Before any other wait the leader yields.
type leaderContext struct {
	context.Context
	mu     sync.Mutex
	leader *leader // nil once the interceptors have returned
}

type leaderKey struct{}

// Value implements context.Context. It returns c for two keys: leaderKey, by which leaderOf finds
// c, and future.WaiterKey, by which package future finds the object whose BeginWait it calls before
// it waits. For other keys it returns the value of the parent context.
func (c *leaderContext) Value(key any) any {
	switch key.(type) {
	case leaderKey, future.WaiterKey:
		return c
	}
	return c.Context.Value(key)
}

// leaderOf returns the innermost leaderContext from which ctx is derived, nil if there is none.
func leaderOf(ctx context.Context) *leaderContext {
	c, _ := ctx.Value(leaderKey{}).(*leaderContext)
	return c
}

// active reports whether the interceptors that were given c still run. It returns false if c is
// nil.
func (c *leaderContext) active() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leader != nil
}

// yield makes the leader of the context yield, so that another goroutine reads, if the interceptors
// that were given c still run. It does nothing if c is nil.
func (c *leaderContext) yield() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader.yield()
}

// finish detaches the context from its leader, after the interceptors have returned: active is
// false from then on, and yield does nothing. It is called once.
func (c *leaderContext) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = nil
}

// BeginWait implements future.Waiter: it is called before a goroutine waits for a future with this
// context. It makes the leader yield if the interceptors still run. If the context is derived from
// that of a handler, the slot of the handler is free until the goroutine calls end.
func (c *leaderContext) BeginWait() (end func()) { return beginWait(c) }

// encodeValues encodes the values to which ptrs point into out, runs the interceptors before and
// after that, and completes the pipe's message. It stops at the first error and returns it; out
// remains the caller's.
func (a *Agent) encodeValues(ctx context.Context, out *outMessage, ptrs ...any) error {
	for i := range a.interceptors {
		if f := a.interceptors[i].Encoding; f != nil {
			if err := f(ctx, &out.view); err != nil {
				return err
			}
		}
	}
	for _, ptr := range ptrs {
		var err error
		if out.view.Kind == KindFailure {
			err = out.encoder.Encode(ptr)
		} else {
			err = a.values.Encode(out.encoder, ptr)
		}
		if err != nil {
			return err
		}
	}
	for i := range a.interceptors {
		if f := a.interceptors[i].Encoded; f != nil {
			if err := f(ctx, &out.view); err != nil {
				return err
			}
		}
	}
	data, tensors, err := out.encoder.Finish()
	if err != nil {
		return err
	}
	return out.fill(ctx, data, tensors, a.devices)
}

// runReceived runs the Received functions of the interceptors, before a value is decoded, and
// returns the context that they derived from ctx. It stops at the first error and returns it. The
// error matches ErrProtocol if an interceptor returned no context.
func (a *Agent) runReceived(ctx context.Context, m *Message) (context.Context, error) {
	for i := len(a.interceptors) - 1; i >= 0; i-- {
		f := a.interceptors[i].Received
		if f == nil {
			continue
		}
		next, err := f(ctx, m)
		if err != nil {
			return ctx, err
		}
		if next == nil {
			return ctx, fmt.Errorf("%w: an interceptor returned no context", ErrProtocol)
		}
		ctx = next
	}
	return ctx, nil
}

// runDecoded runs the Decoded functions of the interceptors, after all values are decoded. It
// stops at the first error and returns it.
func (a *Agent) runDecoded(ctx context.Context, m *Message) error {
	for i := len(a.interceptors) - 1; i >= 0; i-- {
		if f := a.interceptors[i].Decoded; f != nil {
			if err := f(ctx, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// Codec encodes and decodes arguments and results in place of package codec, which still encodes
// errors and the structure of messages. All workers of a group must use the same one. Its methods
// must be safe for concurrent use.
type Codec interface {
	// Encode encodes the value to which ptr points with the methods of e, such as WriteTensor
	// and Encode.
	Encode(e *codec.Encoder, ptr any) error

	// Decode decodes the same values in the same order to the value to which ptr points. The
	// bytes come from a peer, and may be invalid.
	Decode(d *codec.Decoder, ptr any) error
}

// defaultCodec is package codec.
type defaultCodec struct{}

func (defaultCodec) Encode(e *codec.Encoder, ptr any) error { return e.Encode(ptr) }
func (defaultCodec) Decode(d *codec.Decoder, ptr any) error { return d.Decode(ptr) }
