package agent

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
)

// Kind is what a message is in a call.
type Kind byte

// The kinds of messages. Interceptors see all but the last one, Config.Outgoing that too.
const (
	KindRequest Kind = 1 + iota
	KindReply        // a result
	KindFailure      // an error in place of one
	KindCancel       // the word that nobody waits for an answer any more, without a value
)

func (k Kind) String() string { return kind(k).String() }

func (k kind) public() Kind { return Kind(k) }

// Message is one message of a call, as interceptors see it, and Config.Outgoing. It is
// good as long as these run.
type Message struct {
	Kind Kind
	Type string     // of the request, empty for the call of a function
	Name string     // of the function
	Peer WorkerInfo // the other end

	encoder *codec.Encoder // of a message that leaves
	decoder *codec.Decoder // of one that came
	held    func(context.Context) error
}

// State is what SetState set for key while this message was encoded or decoded, by an
// interceptor or by the encoding of a value.
func (m *Message) State(key any) any {
	switch {
	case m.encoder != nil:
		return m.encoder.State(key)
	case m.decoder != nil:
		return m.decoder.State(key)
	}
	return nil
}

// SetState keeps a value for key until the message is encoded, or decoded.
func (m *Message) SetState(key, value any) {
	switch {
	case m.encoder != nil:
		m.encoder.SetState(key, value)
	case m.decoder != nil:
		m.decoder.SetState(key, value)
	}
}

// SetHeader gives a message that leaves a section of that name, which the other end
// can read before it decodes a value. The data must not change until the message has
// left.
func (m *Message) SetHeader(name string, data []byte) {
	if m.encoder != nil {
		m.encoder.SetHeader(name, data)
	}
}

// Header is the section of that name of a message that came. The data must not be
// changed, nor used when the interceptor has returned.
func (m *Message) Header(name string) (data []byte, ok bool) {
	if m.decoder == nil {
		return nil, false
	}
	return m.decoder.Header(name)
}

// Hold keeps the handler of a request from being run until wait has returned, without
// taking the place of another one. An error is the answer. It is for
// Interceptor.Decoded.
func (m *Message) Hold(wait func(context.Context) error) {
	first := m.held
	if first == nil {
		m.held = wait
		return
	}
	m.held = func(ctx context.Context) error {
		if err := first(ctx); err != nil {
			return err
		}
		return wait(ctx)
	}
}

// Interceptor sees all messages of calls: requests, results and errors, those that
// leave and those that come, in calls to this worker itself too. It may be nil in
// parts. An error ends the call with it. Its functions run in the order of
// Config.Interceptors for messages that leave, and in the opposite order for those
// that come. An answer that is sent again, see Once, is sent as they made it first.
//
// They do not block: for messages that come, and for answers that leave, they may run
// where what the other end sends is taken in, be that on the goroutine of some caller;
// what Short says of locks and of the end of a goroutine holds for them too. They may make
// calls that return a future, with the context that they got: these wait for no room. One
// that has to open a pipe waits for that, and others see to what comes meanwhile.
type Interceptor struct {
	// Encoding runs before the values of a message are encoded. ctx is that of the
	// call, or of the handler that answers.
	Encoding func(ctx context.Context, m *Message) error

	// Encoded runs when they are: now it is known what they hold.
	Encoded func(ctx context.Context, m *Message) error

	// Received runs before the values of a message are decoded. The context that it
	// returns, made from ctx, is that of the handler.
	Received func(ctx context.Context, m *Message) (context.Context, error)

	// Decoded runs when they are, and before the handler does.
	Decoded func(ctx context.Context, m *Message) error
}

// encode makes the body of e.
func (a *Agent) encode(ctx context.Context, e *envelope, ptrs ...any) error {
	for i := range a.interceptors {
		if f := a.interceptors[i].Encoding; f != nil {
			if err := f(ctx, &e.about); err != nil {
				return err
			}
		}
	}
	for _, ptr := range ptrs {
		if err := a.encodeValue(e, ptr); err != nil {
			return err
		}
	}
	for i := range a.interceptors {
		if f := a.interceptors[i].Encoded; f != nil {
			if err := f(ctx, &e.about); err != nil {
				return err
			}
		}
	}
	return e.seal(a.devices)
}

// received has the interceptors see a message of which no value is decoded.
func (a *Agent) received(ctx context.Context, m *Message) (context.Context, error) {
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

// decoded has the interceptors see a message of which all values are decoded.
func (a *Agent) decoded(ctx context.Context, m *Message) error {
	for i := len(a.interceptors) - 1; i >= 0; i-- {
		if f := a.interceptors[i].Decoded; f != nil {
			if err := f(ctx, m); err != nil {
				return err
			}
		}
	}
	return nil
}
