package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/chanmutex"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// WorkerInfo names one member of a group. It may be an argument or a result of a call.
type WorkerInfo struct {
	Name string
	Rank int // from 0 on, also called the worker's id

	// Lost, in results of Workers, WorkerInfos and Worker, reports that the pipe to the worker has
	// ended, or could not be opened, and that there is no other since. See Agent.Watch.
	Lost bool `tensorpipe:"-"`
}

// String returns the name and the rank, as "worker1 (rank 1)".
func (w WorkerInfo) String() string { return fmt.Sprintf("%s (rank %d)", w.Name, w.Rank) }

// To returns the destination for calls to this worker. The destination holds the name, not the
// rank.
func (w WorkerInfo) To() To { return To(w.Name) }

// To is the destination of a call: the name of a worker, or the result of Rank or
// WorkerInfo.To.
type To string

// rankMark is the first character of a To that holds a rank. No name begins with it.
const rankMark = '#'

// Rank returns the destination for calls to the worker of rank n.
func Rank(n int) To { return To(string(rankMark) + strconv.Itoa(n)) }

// rank returns the rank in t and true if t has the form of a result of Rank: rankMark and a decimal
// number. Otherwise it returns false, and the number has no meaning.
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
	limit      time.Duration // negative for the agent's default
	stack      bool
	background bool   // see WithBackground
	key        string // see WithIdempotencyKey
	retry      *Retry

	place        PlaceFunc // see WithInto
	replyDevices bool      // see WithReplyDevices
	headers      []header

	number uint64 // of a call WithRetry without a key of the application
	err    error  // of an invalid option
}

// WithTimeout limits the duration of a call to d, in place of the agent's default timeout: after d
// the call fails with an error that matches ErrTimeout. For a stream d is the limit of idleness,
// see ServerStream.Call. With 0 there is no limit. A context that ends earlier still ends the call.
// If d is negative, the call fails with an error that matches ErrConfig.
func WithTimeout(d time.Duration) CallOption {
	return func(o *callOptions) {
		o.limit = d
		if d < 0 {
			o.err = &ConfigError{Field: "Timeout", Value: d}
		}
	}
}

// CallContext returns a context for work of this worker in place of a call with the options opts, for
// extensions: it ends with ctx, and when such a call would run into its limit, with a *TimeoutError as
// its cause. The caller must call cancel when the work is done. An option that is not valid has no
// effect.
func (a *Agent) CallContext(ctx context.Context, opts ...CallOption) (limited context.Context, cancel context.CancelFunc) {
	o := callOptions{limit: -1}
	for _, opt := range opts {
		opt(&o)
	}
	limit := o.limit
	if limit < 0 {
		limit = a.DefaultTimeout()
	}
	if limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, limit, &TimeoutError{Limit: limit})
}

// WithRemoteStack makes the called worker send the stack of the handler's goroutine if the handler
// panics. The field Stack of the [RemoteError] and of the [PanicError] with which the call fails
// then holds that stack; without this option it is empty.
func WithRemoteStack() CallOption { return func(o *callOptions) { o.stack = true } }

// WithBackground makes Shutdown ignore a call, at this worker and at the one that is called: neither
// waits for the call, nor for its handler. It is for messages by which subsystems keep their state
// up to date, and which may still be sent while Extension.Drain runs. A call that is pending when the
// agent is closed fails with ErrClosed, as any other.
func WithBackground() CallOption { return func(o *callOptions) { o.background = true } }

// target is a worker and the function of it that is called.
type target struct {
	to        To
	typ, name string
	opts      []CallOption
	argsLock  chanmutex.Mutex // if not nil, held while the memory of the arguments is in use
	dst       *destination    // of the tensors of the result, nil without WithInto
}

// wrapError returns an *Error of a call to t that wraps err. Its field Worker is the destination as
// the caller of the function gave it, which may be a rank.
func (t *target) wrapError(err error) error {
	return &Error{Op: "call", Func: displayName(t.typ, t.name), Worker: string(t.to), Err: err}
}

// displayName returns the text by which errors and logs name a call: the name of the function or
// operator, or "typ:name" for a message of another type.
func displayName(typ, name string) string {
	if typ == "" || typ == invokeType || typ == opType || isStreamType(typ) {
		return name
	}
	return typ + ":" + name
}

// roundTrip makes the call t with the value to which args points, waits for the reply, and decodes
// the reply to the value to which result points. It makes several attempts if t has the option
// WithRetry. The device streams that ctx selects (device.StreamFrom) wait until the tensors of the
// result are valid. The memory of args is free when roundTrip returns. The error is an *Error;
// result may then be partly set.
func (a *Agent) roundTrip(ctx context.Context, t target, result, args any) error {
	o := t.settings()
	if !o.background {
		a.activity.begun.Add(1)
		defer a.activity.ended.Add(1)
	}
	var streams []device.Stream
	var err error
	if o.place != nil {
		t.dst = newDestination(ctx, o.place)
		defer t.dst.end(nil)
	}
	if o.retry != nil {
		streams, err = a.callWithRetry(ctx, o.retry, t, result, args)
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

// callOnce makes one attempt of the call t: it sends the value to which args points, waits, and
// decodes the reply to the value to which result points. It returns the streams on which the
// tensors of the result are valid, nil if no tensor has a stream. The memory of args is free when
// callOnce returns. The error is an *Error; result and the streams must then not be used.
func (a *Agent) callOnce(ctx context.Context, t target, result, args any) ([]device.Stream, error) {
	c := a.callPool.Get().(*call)
	returned := false
	defer a.reportUnreturned(c, &t, &returned)
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
	c.conn, c.dst, c.reply, c.err, c.streams = nil, nil, nil, nil, nil
	a.callPool.Put(c)
	return streams, err
}

// reportUnreturned is deferred by a function that makes the call c to t and that sets *returned
// before it returns. If *returned is false, a function of the application has panicked or ended the
// goroutine: reportUnreturned then calls reportCallEnded. The panic goes on.
func (a *Agent) reportUnreturned(c *call, t *target, returned *bool) {
	if *returned {
		return
	}
	v := recover()
	if v == nil {
		a.reportCallEnded(c, t.wrapError(errGoexitWaiting))
		return
	}
	a.reportCallEnded(c, t.wrapError(&PanicError{Value: fmt.Sprint(v), Stack: string(debug.Stack())}))
	panic(v)
}

// startCall initializes c for the call t, reports the start of the call to Events, and sends the
// request with the value to which args points. It opens a pipe to the worker if there is none. If
// the worker closed the pipe before anything was sent, startCall opens another one and sends the
// request again, once.
//
// The error is an *Error; the call has then ended, and its end has been reported to Events. If
// startCall returns nil, c.observer is notified of the end of the call; the caller must wait for a
// call without an observer with c.wait.
func (a *Agent) startCall(ctx context.Context, c *call, t target, args any) error {
	if t.argsLock != nil {
		t.argsLock.Lock()
		defer t.argsLock.Unlock()
	}
	c.conn, c.to, c.typ, c.name, c.id, c.begun, c.limit = nil, t.to, t.typ, t.name, 0, time.Now(), 0
	c.dst = t.dst
	c.requestBytes, c.replyBytes, c.outcome = 0, 0, MessageUnsent
	a.reportCallStarted(c)
	fail := func(err error) error {
		err = &Error{Op: "call", Func: displayName(t.typ, t.name), Worker: a.nameOf(t.to), Err: err}
		a.reportCallEnded(c, err)
		return err
	}
	if err := ctxerr.Cause(ctx); err != nil {
		return fail(err)
	}
	o, err := a.callOptions(t)
	if err != nil {
		return fail(err)
	}
	if c.stream == nil {
		c.limit = o.limit
	}
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

// sendRequest sends the request of the call c with the value to which args points, on the pipe to
// the worker t.to, and sets c.conn to that pipe. It opens a pipe if there is none.
//
// If peerClosed is true, err is not nil: the other end had closed the pipe before anything was
// sent. The caller may then detach the pipe from its peer, with clearConn, and send the request
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
	if peerClosed = err != nil && !c.sendBegun && errors.Is(err, pipe.ErrPeerClosed); peerClosed {
		c.outcome = MessageUnsent
		c.ends.run(c.outcome, err)
	}
	return peerClosed, err
}

// callOptions applies the options of the call t and returns the resulting settings. Their limit is
// the agent's default timeout unless an option sets one. The error matches ErrArguments if the type
// or the name in t is longer than wire.MaxName, and ErrConfig if an option is invalid.
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

// encodeRequest gives the call c the next number of its connection and returns its request, which
// contains the value to which args points. c.conn and c.begun must be set; encodeRequest sets c.id
// and c.nested. The caller owns the returned message, which comes from the agent's pool and refers
// to the memory of the tensors in args. The error matches ErrArguments; the message is then nil.
func (a *Agent) encodeRequest(ctx context.Context, c *call, t target, o *callOptions, args any) (*outMessage, error) {
	timeout := o.limit
	if deadline, ok := ctx.Deadline(); ok && c.stream == nil { // the limit of a stream is for idleness
		if left := deadline.Sub(c.begun); timeout == 0 || left < timeout {
			timeout = max(left, 1)
		}
	}
	flags := byte(0)
	if o.stack {
		flags |= wire.FlagStack
	}
	if o.background {
		flags |= wire.FlagBackground
	}
	c.nested = requestOf(ctx) != nil || leaderOf(ctx).active()
	if c.nested {
		flags |= wire.FlagNested
	}
	c.id = c.conn.calls.lastID.Add(1)
	out := a.outMessages.get()
	out.begin(wire.AppendRequest(out.buf[:0], flags, c.id, timeout, t.typ, t.name))
	out.view = Message{Kind: KindRequest, Type: t.typ, Name: t.name, Peer: c.conn.peer, encoder: out.encoder, key: c.key(), ends: &c.ends}
	if o.replyDevices {
		out.route = c.conn.replyRoute
	}
	for _, h := range o.headers {
		out.encoder.SetHeader(h.name, h.data)
	}
	switch {
	case o.key != "":
		out.encoder.SetHeader(wire.KeyHeader, []byte(o.key))
	case c.stream != nil:
		c.stream.bind(c, out.encoder)
	case o.number > 0:
		out.encoder.SetHeader(wire.KeyHeader, a.retries.appendKey(nil, o.number))
	}
	if err := a.encodeValues(ctx, out, args); err != nil {
		a.outMessages.put(out)
		return nil, withKind(ErrArguments, err)
	}
	return out, nil
}

func (c *call) key() CallKey { return CallKey{c.conn, c.id, false} }

// wrapError returns an *Error that wraps err and names the function of the call and the worker at
// the other end of c.conn, which must not be nil.
func (c *call) wrapError(err error) error {
	return &Error{Op: "call", Func: displayName(c.typ, c.name), Worker: c.conn.peer.Name, Err: err}
}
