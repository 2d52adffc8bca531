package agent

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
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

// bind sets the connection and the number of the stream to those of its call c, and adds the window
// of this end to the request, which e encodes. It is called before the request is sent, again if
// the request is encoded again for another connection.
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

// decode decodes the reply in, returns in to its pool, and passes the end of the call to the stream
// and to Events. l is the leader on which decode runs, nil on a goroutine that does not lead.
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
