package agent

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
)

// streamCall is the call of a stream at the caller.
type streamCall struct {
	call
	own      stream
	agent    *Agent
	activity *activity // in which the call counts, nil for none
	result   any       // pointer to the result; nil if the stream has none
}

// openStream makes the call t, which is a stream, with the value to which args points, and returns
// the caller's end of the stream. The reply of the call is decoded to the value to which result
// points, unless result is nil. If receives is false, the called worker must not send data. When
// openStream returns, the memory of args is free. The caller must receive until the end of the
// stream, or fail the stream. The error is an *Error; there is then no stream.
func (a *Agent) openStream(ctx context.Context, t target, args, result any, receives bool) (*stream, error) {
	o, err := a.callOptions(t)
	if err == nil && (o.retry != nil || o.key != "") {
		err = fmt.Errorf("%w: a stream cannot be repeated: WithRetry and WithIdempotencyKey are for calls", ErrConfig)
	}
	if err == nil && o.place != nil {
		err = fmt.Errorf("%w: WithInto is for calls, not for streams", ErrConfig)
	}
	if err != nil {
		return nil, t.wrapError(err)
	}
	g := &streamCall{agent: a, result: result}
	g.observer, g.stream = g, &g.own
	s, window := &g.own, 0
	if receives {
		window = a.limits.StreamBytes
	}
	s.init(o.limit, window)
	s.call, s.peerCredit = g, window
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	opening, opened := ctx, context.CancelFunc(func() {})
	if o.limit > 0 {
		opening, opened = context.WithTimeoutCause(ctx, o.limit, &TimeoutError{Limit: o.limit})
	}
	defer opened()
	g.activity = a.countedActivity(&o)
	g.activity.Begin()
	if err := a.startCall(opening, &g.call, t, args); err != nil {
		s.cancel(err)
		g.activity.End()
		return nil, err
	}
	context.AfterFunc(s.ctx, s.abandon)
	if g.sendEnded != nil {
		defer beginWait(ctx)()
		<-g.sendEnded
	}
	return s, nil
}

// bind sets the connection and the number of the stream to those of its call c. If this end
// receives values, bind also adds its window to the request, which e encodes. It is called before
// the request is sent, and again if the request is encoded again for another connection.
func (s *stream) bind(c *call, e *codec.Encoder) {
	s.conn, s.id = c.conn, c.id
	if s.window > 0 {
		e.SetHeader(wire.WindowHeader, wire.AppendNumber(nil, uint64(s.window)))
	}
}

// giveUp cancels the call with cause, counts it as ended and reports that to Events. If the call
// has ended before, giveUp only waits until its request is no longer being sent.
func (g *streamCall) giveUp(cause error) {
	if g.cancel(cause) {
		g.end(cause)
	}
}

// end counts the call as ended, with err or, if that is nil, with a result, and reports that to
// Events.
func (g *streamCall) end(err error) {
	if err != nil {
		err = g.wrapError(err)
	}
	g.agent.reportCallEnded(&g.call, err)
	g.activity.End()
}

// callEnded implements observer: it is called when the call has ended with err or with the reply
// in, which it owns. It decodes an inline reply itself, and a larger one on another goroutine. l is
// the leader on which callEnded runs, nil on a goroutine that does not lead.
func (g *streamCall) callEnded(in *inMessage, err error, l *leader) {
	switch {
	case err != nil:
		g.end(err)
		g.own.fail(err)
	case in.isInline():
		g.decode(in, l)
	default:
		go g.decode(in, nil)
	}
}

// decode decodes in, the reply, returns it to its pool, and passes the end of the call to the
// stream and to Events. l is the leader on which decode runs, nil on a goroutine that does not
// lead.
func (g *streamCall) decode(in *inMessage, l *leader) {
	err := errGoexit
	defer func() {
		g.end(err)
		g.own.setReply(err)
	}()
	err = catchPanic(func() error {
		if l == nil || len(g.agent.interceptors) == 0 {
			return g.agent.decodeReply(g.own.ctx, &g.call, in, g.result)
		}
		ctx := &leaderContext{Context: g.own.ctx, leader: l}
		defer ctx.finish()
		return g.agent.decodeReply(ctx, &g.call, in, g.result)
	})
}

// streamKinds names the types of requests that open a stream, for errors.
var streamKinds = map[string]string{
	wire.StreamServer: "server stream",
	wire.StreamClient: "client stream",
	wire.StreamBidi:   "bidirectional stream",
}

// isStreamType reports whether requests of the type typ open a stream.
func isStreamType(typ string) bool {
	return typ == wire.StreamServer || typ == wire.StreamClient || typ == wire.StreamBidi
}

// streamHandler serves a function that is a stream.
type streamHandler struct {
	typ string // of the requests that open it

	// open decodes the argument of a request and returns the task of the stream. The task returns
	// a pointer to the result.
	open func(r *Request) (func(ctx context.Context, s *stream) (result any, err error), error)
}

// newServedStream returns the called worker's end of the stream that the request r opens, whose
// handler is that of e. Until the handler starts the caller has no credit.
func newServedStream(r *Request, e *handlerEntry) *stream {
	s := &stream{conn: r.conn, id: r.id, served: r}
	window := 0
	if e.typ != wire.StreamServer {
		window = r.conn.agent.limits.StreamBytes
	}
	s.init(r.limit, window)
	return s
}

// Open implements Handler: it decodes the argument, and the window of the caller. The error matches
// ErrArguments or ErrProtocol.
func (h *streamHandler) Open(r *Request) (Task, error) {
	t := &streamTask{}
	var err error
	if t.run, err = h.open(r); err != nil {
		return nil, err
	}
	if data, ok := r.message.decoder.Header(wire.WindowHeader); ok && h.typ != wire.StreamClient {
		n, err := wire.ParseNumber(wire.WindowHeader, data)
		if err == nil {
			err = r.stream.addCredit(n)
		}
		if err != nil {
			return nil, err
		}
	}
	return t, nil
}

type streamTask struct {
	run func(ctx context.Context, s *stream) (result any, err error)
}

// Run implements Task: it lets the caller send, runs the handler and replies with its result or its
// error, which ends the stream. If ctx has ended before, Run does not run the handler and replies
// with the cause of ctx.
func (t *streamTask) Run(ctx context.Context, r *Request) {
	if err := ctxerr.Cause(ctx); err != nil { // the caller does not wait any more
		_ = r.Fail(err) // nothing else replies
		return
	}
	s := r.stream
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	context.AfterFunc(s.ctx, s.discard)
	defer s.cancel(ErrSendClosed) // for goroutines that the handler has left
	if s.window > 0 {
		s.grant(s.window)
	}
	result, err := t.runHandler(s)
	if err != nil {
		r.failLogged(err)
		return
	}
	_ = r.Reply(result) // an error is the reply instead
}

// runHandler runs the handler and returns its result and error. The values that it has sent are
// written then, also if it panics, and it sends no others.
func (t *streamTask) runHandler(s *stream) (any, error) {
	defer s.endBatch()
	return t.run(s.ctx, s)
}

// newServedStreamFunc returns the entry for Config.Funcs by which the function with this name is
// served by h, with opts applied. If valid is false, since the function is nil, or opts has an
// option that streams do not have, the entry holds an error that matches ErrConfig, with which Join
// fails.
func newServedStreamFunc(name string, valid bool, h streamHandler, opts []ServeOption) Served {
	s := Served{entry: handlerEntry{name: name, stream: &h}}
	for _, set := range opts {
		set(&s)
	}
	switch {
	case !valid:
		s.err = fmt.Errorf("%w: %s: function is nil", ErrConfig, name)
	case s.entry.short || s.entry.once || s.entry.borrows || s.entry.place != nil:
		s.err = fmt.Errorf("%w: %s: WithShort, WithOnce, WithBorrowedArgs and WithArgsInto are not for streams", ErrConfig, name)
	}
	return s
}
