package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/chanmutex"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// WorkerInfo names one member of a group. It may be an argument or a result of a call.
type WorkerInfo struct {
	Name string
	Rank int // from 0 on, also called the worker's id
}

// String returns the form that PyTorch prints.
func (w WorkerInfo) String() string { return fmt.Sprintf("WorkerInfo(id=%d, name=%s)", w.Rank, w.Name) }

// To returns the destination for calls to the worker.
func (w WorkerInfo) To() To { return To(w.Name) }

// To is the destination of a call: the name of a worker, or the result of Rank or
// WorkerInfo.To.
type To string

// rankMark is the first character of a To that holds a rank. No name begins with it.
const rankMark = '#'

// Rank returns the destination for calls to the worker of rank n.
func Rank(n int) To { return To(string(rankMark) + strconv.Itoa(n)) }

// rank returns the rank that t holds and true, or false if t does not hold a valid rank.
func (t To) rank() (int, bool) {
	if len(t) < 2 || t[0] != rankMark {
		return 0, false
	}
	n, err := strconv.Atoi(string(t[1:]))
	return n, err == nil
}

// CallOption changes one call.
type CallOption func(*callOptions)

type callOptions struct {
	limit time.Duration // negative for the agent's default
	stack bool
	key   string // see WithIdempotencyKey
	retry *Retry

	number uint64 // of a call WithRetry without a key of the application
	err    error  // of an invalid option
}

// WithTimeout sets the limit of a call; 0 is none. A context that ends earlier still ends the
// call. The error of the call matches ErrConfig if d is negative.
func WithTimeout(d time.Duration) CallOption {
	return func(o *callOptions) {
		o.limit = d
		if d < 0 {
			o.err = &ConfigError{Field: "Timeout", Value: d}
		}
	}
}

// WithRemoteStack requests the stack of the handler's goroutine if the handler panics. The error
// of the call then has it, see [PanicError] and [RemoteError].
func WithRemoteStack() CallOption { return func(o *callOptions) { o.stack = true } }

// target is a worker and the function of it that is called.
type target struct {
	to        To
	typ, name string
	opts      []CallOption
	argsLock  chanmutex.Mutex // if not nil, held while the memory of the arguments is in use
}

// wrapError returns err wrapped in the *Error of a call to t. Its Worker is the destination as
// given.
func (t *target) wrapError(err error) error {
	return &Error{Op: "call", Func: displayName(t.typ, t.name), Worker: string(t.to), Err: err}
}

// displayName returns the text by which errors and logs name a call: the name of the function or
// operator, or "typ:name" for a message of another type.
func displayName(typ, name string) string {
	if typ == "" || typ == invokeType || typ == opType {
		return name
	}
	return typ + ":" + name
}

// roundTrip makes a call with the value to which args points, waits for the reply, and decodes it
// to the value to which result points. The streams of ctx wait for the result's tensors. The
// memory of args is free when roundTrip returns. The error is an *Error.
func (a *Agent) roundTrip(ctx context.Context, t target, result, args any) error {
	if a.activity.begin(&t) {
		defer a.activity.ended.Add(1)
	}
	var streams []device.Stream
	var err error
	if r := t.retry(); r != nil {
		streams, err = a.callWithRetry(ctx, r, t, result, args)
	} else {
		streams, err = a.callOnce(ctx, t, result, args)
	}
	if err == nil && len(streams) > 0 {
		if err = order(ctx, streams); err != nil {
			err = &Error{Op: "call", Func: displayName(t.typ, t.name), Worker: a.nameOf(t.to), Err: err}
		}
	}
	return err
}

// callOnce makes one attempt of a call: it sends args, waits, and decodes the reply to result. It
// returns the streams on which the tensors of the result are valid, nil if all are in host
// memory. The memory of args is free when it returns. The error is an *Error.
func (a *Agent) callOnce(ctx context.Context, t target, result, args any) ([]device.Stream, error) {
	c := a.callPool.Get().(*call)
	returned := false
	if a.events.CallEnded != nil {
		defer func() {
			if returned {
				return
			}
			// A function of the application has panicked or ended the goroutine.
			v := recover()
			if v == nil {
				a.reportCallEnded(c, t.wrapError(errGoexitWaiting))
				return
			}
			a.reportCallEnded(c, t.wrapError(&PanicError{Value: fmt.Sprint(v), Stack: string(debug.Stack())}))
			panic(v)
		}()
	}
	err := a.startCall(ctx, c, t, args)
	if err != nil {
		returned = true
		return nil, err
	}
	in, err := c.wait(ctx)
	if err == nil {
		err = a.decodeReply(ctx, c, in, result)
	}
	if err != nil {
		err = c.wrapError(err)
	}
	returned = true
	a.reportCallEnded(c, err)
	streams := c.streams
	c.conn, c.reply, c.err, c.streams = nil, nil, nil, nil
	a.callPool.Put(c)
	return streams, err
}

// startCall initializes c and sends the request of a call with args. It opens a pipe to the worker
// if there is none. If the worker closed the pipe before anything was sent, startCall opens
// another one. After an error, which is an *Error, the call has ended. Otherwise c.observer is
// notified of the end or, if there is no observer, c.wait returns the result.
func (a *Agent) startCall(ctx context.Context, c *call, t target, args any) error {
	if t.argsLock != nil {
		t.argsLock.Lock()
		defer t.argsLock.Unlock()
	}
	c.conn, c.to, c.typ, c.name, c.id, c.begun = nil, t.to, t.typ, t.name, 0, time.Now()
	c.requestBytes, c.replyBytes = 0, 0
	a.reportCallStarted(c)
	fail := func(err error) error {
		err = &Error{Op: "call", Func: displayName(t.typ, t.name), Worker: a.nameOf(t.to), Err: err}
		a.reportCallEnded(c, err)
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return fail(err)
	}
	o, err := a.callOptions(t)
	if err != nil {
		return fail(err)
	}
	c.limit = o.limit
	peerClosed, err := a.sendRequest(ctx, c, t, &o, args)
	if peerClosed {
		c.conn.owner.clearConn(c.conn)
		_, err = a.sendRequest(ctx, c, t, &o, args)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// sendRequest sends the request of a call on the pipe to the worker, and sets c.conn to that pipe.
// It opens a pipe if there is none. peerClosed reports that err means that the other end had
// closed the pipe before anything was sent: the caller then clears c.conn and may send the request
// again.
func (a *Agent) sendRequest(ctx context.Context, c *call, t target, o *callOptions, args any) (peerClosed bool, err error) {
	if c.conn, err = a.connTo(ctx, c, t.to); err != nil {
		return false, err
	}
	out, err := a.encodeRequest(ctx, c, t, o, args)
	if err != nil {
		return false, err
	}
	err = c.conn.send(ctx, c, out)
	return err != nil && !c.sendBegun && errors.Is(err, pipe.ErrPeerClosed), err
}

// callOptions returns the options of a call to t. The limit is the agent's default unless an
// option sets one. The error matches ErrArguments if the type or the name is too long, and
// ErrConfig if an option is invalid.
func (a *Agent) callOptions(t target) (callOptions, error) {
	if len(t.typ) > wire.MaxName || len(t.name) > wire.MaxName {
		return callOptions{}, fmt.Errorf("%w: a name of more than %d bytes", ErrArguments, wire.MaxName)
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

// encodeRequest gives a call its number and encodes its request. c.conn and c.begun must be set.
// The message comes from the agent's pool, and passes to the caller. The error matches
// ErrArguments.
func (a *Agent) encodeRequest(ctx context.Context, c *call, t target, o *callOptions, args any) (*outMessage, error) {
	timeout := o.limit
	if deadline, ok := ctx.Deadline(); ok {
		if left := deadline.Sub(c.begun); timeout == 0 || left < timeout {
			timeout = max(left, 1)
		}
	}
	flags := byte(0)
	if o.stack {
		flags |= wire.FlagStack
	}
	c.nested = requestOf(ctx) != nil || leaderOf(ctx).active()
	if c.nested {
		flags |= wire.FlagNested
	}
	c.id = c.conn.calls.lastID.Add(1)
	out := a.outMessages.get()
	out.begin(wire.AppendRequest(out.buf[:0], flags, c.id, timeout, t.typ, t.name))
	out.view = Message{Kind: KindRequest, Type: t.typ, Name: t.name, Peer: c.conn.peer, encoder: out.encoder}
	switch {
	case o.key != "":
		out.encoder.SetHeader(wire.KeyHeader, []byte(o.key))
	case o.number > 0:
		out.encoder.SetHeader(wire.KeyHeader, a.retries.appendKey(nil, o.number))
	}
	if err := a.encodeValues(ctx, out, args); err != nil {
		a.outMessages.put(out)
		return nil, withKind(ErrArguments, err)
	}
	return out, nil
}

// wrapError returns err wrapped in the *Error of the call, with the name of the worker at the
// other end of c.conn, which must be set.
func (c *call) wrapError(err error) error {
	return &Error{Op: "call", Func: displayName(c.typ, c.name), Worker: c.conn.peer.Name, Err: err}
}
