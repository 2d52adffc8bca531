package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/turn"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// callOverhead is what a call takes at either end beside its message, roughly.
const callOverhead = 512

// CallOption changes one call.
type CallOption func(*callOptions)

type callOptions struct {
	limit time.Duration // negative: that of the agent
	stack bool
	key   string // see Idempotent
	retry *Retry

	number uint64 // of a call WithRetry that has no key
	err    error  // of an option that makes no sense
}

// Timeout gives a call its own limit; 0 is none. A context that ends earlier counts
// all the same. The error of the call matches ErrConfig if d is negative.
func Timeout(d time.Duration) CallOption {
	return func(o *callOptions) {
		o.limit = d
		if d < 0 {
			o.err = fmt.Errorf("%w: RPC Timeout must be non-negative, got %v", ErrConfig, d)
		}
	}
}

// RemoteStack asks for the stack of the handler if that panics, see [PanicError].
func RemoteStack() CallOption { return func(o *callOptions) { o.stack = true } }

// target is what is called.
type target struct {
	to        To
	typ, name string
	opts      []CallOption
	using     turn.Turn // if not nil, held while the memory of the arguments is in use
}

// roundTrip makes a call with what args points to and waits for its answer, which it
// decodes to result.
func (a *Agent) roundTrip(ctx context.Context, t target, result, args any) error {
	if a.activity.begin(&t) {
		defer a.activity.ended.Add(1)
	}
	var streams []device.Stream
	var err error
	if r := t.retry(); r != nil {
		streams, err = a.insist(ctx, r, t, result, args)
	} else {
		streams, err = a.attempt(ctx, t, result, args)
	}
	if err == nil && len(streams) > 0 {
		if err = order(ctx, streams); err != nil {
			err = &Error{Op: "call", Func: calledName(t.typ, t.name), Worker: a.nameOf(t.to), Err: err}
		}
	}
	return err
}

// attempt makes a call once, and returns the streams on which the tensors of the result
// are valid.
func (a *Agent) attempt(ctx context.Context, t target, result, args any) ([]device.Stream, error) {
	c := a.callPool.Get().(*call)
	err := a.begin(ctx, c, t, args)
	if err != nil {
		return nil, err
	}
	answer, err := c.wait(ctx)
	if err == nil {
		err = a.take(ctx, c, answer, result)
	}
	if err != nil {
		err = c.fault(err)
	}
	streams := c.streams
	c.conn, c.answer, c.err, c.streams = nil, nil, nil, nil
	a.callPool.Put(c)
	return streams, err
}

// begin sends a request.
func (a *Agent) begin(ctx context.Context, c *call, t target, args any) error {
	if t.using != nil {
		t.using.Take()
		defer t.using.Give()
	}
	fail := func(err error) error {
		return &Error{Op: "call", Func: calledName(t.typ, t.name), Worker: a.nameOf(t.to), Err: err}
	}
	if err := context.Cause(ctx); err != nil {
		return fail(err)
	}
	c.conn, c.to, c.typ, c.name, c.id, c.begun = nil, t.to, t.typ, t.name, 0, time.Now()
	o, err := a.options(t)
	if err != nil {
		return fail(err)
	}
	c.limit = o.limit
	closed, err := a.ask(ctx, c, t, &o, args)
	if closed {
		c.conn.owner.detach(c.conn)
		_, err = a.ask(ctx, c, t, &o, args)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// ask sends the request of a call, by the pipe that there is or by a new one. It reports
// closed if the other end had closed the pipe, maybe before that was attached, and nothing
// has left.
func (a *Agent) ask(ctx context.Context, c *call, t target, o *callOptions, args any) (closed bool, err error) {
	if c.conn, err = a.connTo(ctx, c, t.to); err != nil {
		return false, err
	}
	e, err := a.request(ctx, c, t, o, args)
	if err != nil {
		return false, err
	}
	err = c.conn.send(ctx, c, e)
	return err != nil && !c.leaving && errors.Is(err, pipe.ErrPeerClosed), err
}

// options are those of a call.
func (a *Agent) options(t target) (callOptions, error) {
	if len(t.typ) > maxName || len(t.name) > maxName {
		return callOptions{}, fmt.Errorf("%w: a name of more than %d bytes", ErrArguments, maxName)
	}
	if len(t.opts) == 0 {
		return callOptions{limit: a.DefaultTimeout()}, nil
	}
	o := callOptions{limit: -1}
	for _, set := range t.opts {
		set(&o)
	}
	if o.limit < 0 {
		o.limit = a.DefaultTimeout()
	}
	return o, o.err
}

// request encodes a request and gives it its number.
func (a *Agent) request(ctx context.Context, c *call, t target, o *callOptions, args any) (*envelope, error) {
	left := o.limit
	if deadline, ok := ctx.Deadline(); ok {
		if until := deadline.Sub(c.begun); left == 0 || until < left {
			left = max(until, 1)
		}
	}
	flags := byte(0)
	if o.stack {
		flags |= wantStack
	}
	c.nested = requestOf(ctx) != nil || shiftOf(ctx).isOn()
	if c.nested {
		flags |= nested
	}
	c.id = c.conn.calls.number()
	e := a.envelopes.get()
	e.begin(appendRequest(e.buf[:0], flags, c.id, left, t.typ, t.name))
	e.about = Message{Kind: KindRequest, Type: t.typ, Name: t.name, Peer: c.conn.peer, encoder: e.encoder}
	switch {
	case o.key != "":
		e.encoder.SetHeader(keyHeader, []byte(o.key))
	case o.number > 0:
		e.encoder.SetHeader(keyHeader, a.retried.appendKey(nil, o.number))
	}
	if err := a.encode(ctx, e, args); err != nil {
		a.envelopes.put(e)
		return nil, marked(ErrArguments, err)
	}
	return e, nil
}

// fault is an error with what was called.
func (c *call) fault(err error) error {
	return &Error{Op: "call", Func: calledName(c.typ, c.name), Worker: c.conn.peer.Name, Err: err}
}

// calledName is what errors call what was called.
func calledName(typ, name string) string {
	if typ == "" || typ == invokeType || typ == opType {
		return name
	}
	return typ + ":" + name
}
