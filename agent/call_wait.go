package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

var errGoexitWaiting = errors.New("the goroutine of the caller has ended")

// wait blocks until the call has ended and returns its reply, which the caller decodes or drops.
// The error is that of the call, the cause of ctx, or a *TimeoutError after the limit. If a
// function of the application that runs during the wait ends the goroutine, as FailNow of a test
// does, wait cancels the call and drops the reply. In any case no other goroutine uses the call
// after wait.
func (c *call) wait(ctx context.Context) (*inMessage, error) {
	returned := false
	defer func() {
		if !returned {
			if in, _ := c.abort(errGoexitWaiting); in != nil {
				c.conn.agent.inMessages.drop(in)
			}
		}
	}()
	in, err := c.waitForReply(ctx)
	returned = true
	return in, err
}

// waitForReply blocks until the call has ended and returns its reply or its error. It polls first,
// which is fastest if the reply comes at once. When ctx or the limit of the call ends, it aborts
// the call and returns the cause of ctx or a *TimeoutError. It serves wait only, which handles the
// case that the goroutine ends during the wait.
func (c *call) waitForReply(ctx context.Context) (*inMessage, error) {
	if r := requestOf(ctx); r != nil && c.nested {
		r.slot.yieldLeader() // before it reads other messages, whose handlers may wait in turn
	}
	if c.conn.poll(&c.leader, c.completed) {
		return c.reply, c.err
	}
	defer beginWait(ctx)()
	var expired <-chan time.Time
	if c.limit > 0 {
		left := time.Until(c.begun.Add(c.limit))
		if c.timer == nil {
			c.timer = time.NewTimer(left)
		} else {
			c.timer.Reset(left)
		}
		expired = c.timer.C
		defer c.timer.Stop()
	}
	switch err := c.conn.block(ctx, &c.leader, c.completed, expired); err {
	case nil:
		return c.reply, c.err
	case errExpired:
		return c.abort(&TimeoutError{Limit: c.limit})
	default:
		return c.abort(err)
	}
}

// cancel ends a call before its reply arrives. It removes the call from the table, returns the
// call's bytes to the budget, sends a cancellation with the cause to the called worker, and returns
// true. If the call has already ended it sends nothing and returns false. Either way it first stops
// a request that is being sent in the background: when cancel returns, the memory of the arguments
// is free.
func (c *call) cancel(cause error) bool {
	removed := c.conn.calls.remove(c.id) != nil
	if removed {
		c.releaseCharge()
	}
	if c.sendEnded != nil {
		c.sendContext.cancel(cause)
		<-c.sendEnded
	}
	if !removed {
		return false
	}
	conn, text := c.conn, cause.Error() // c may be in use again when the goroutine runs
	m := &pipe.Message{Metadata: wire.AppendCancel(nil, c.id, text)}
	if conn.agent.faultHook != nil {
		about := Message{Kind: KindCancel, Type: c.typ, Name: c.name, Peer: conn.peer, key: c.key()}
		if done, _ := conn.injectFault(&about, m); done {
			return true
		}
	}
	// An error is that of the pipe, which the read loop gets as well.
	if sent, err := conn.pipe.TryWrite(m); !sent && err == nil {
		go func() { _ = conn.pipe.Write(context.Background(), m) }()
	}
	return true
}

// abort cancels a call that has no observer, and returns nil and cause. If the call has already
// ended, it returns the reply or the error of the call instead. The caller owns the reply.
func (c *call) abort(cause error) (*inMessage, error) {
	if c.cancel(cause) {
		return nil, cause
	}
	<-c.completed
	return c.reply, c.err
}

// decodeReply reads in, the reply to the call c, runs the interceptors, and decodes the result to
// the variable to which result points, unless result is nil. It sets c.streams to the streams of
// the result's tensors, and returns in to its pool in any case.
//
// The error is a *RemoteError if the worker replied with an error; that of a stream that does not wait for
// the copies of the arguments; a *TimeoutError; the cause of
// ctx; the error of an interceptor; or it matches ErrResult, ErrProtocol, ErrUnreachable or
// ErrClosed.
func (a *Agent) decodeReply(ctx context.Context, c *call, in *inMessage, result any) (err error) {
	c.outcome = MessageAnswered
	ended := errGoexit // unless decodeReply returns, or panics
	defer func() {
		in.ends.run(MessageHandled, ended)
		a.inMessages.put(in)
	}()
	defer func() { ended = err }()
	if a.events.CallEnded != nil {
		d := in.incoming.Descriptor()
		c.replyBytes = len(d.Metadata) + d.Bytes()
	}
	if err := a.receiveReply(ctx, c, in); err != nil {
		return err
	}
	if err := c.unordered.Load(); err != nil {
		return *err
	}
	if c.stream != nil {
		if err := c.stream.setCount(in.decoder); err != nil {
			return err
		}
	}
	c.streams = in.tensorStreams()
	in.view = Message{Kind: in.head.Kind, Type: c.typ, Name: c.name, Peer: c.conn.peer, decoder: in.decoder, key: c.key(), ends: &in.ends}
	if _, err := a.runReceived(ctx, &in.view); err != nil {
		return err
	}
	if in.head.Kind == KindFailure {
		return c.ownDeadline(ctx, a.decodeFailure(ctx, in))
	}
	if result != nil {
		if err := a.values.Decode(in.decoder, result); err != nil {
			return withKind(ErrResult, err)
		}
	}
	return a.runDecoded(ctx, &in.view)
}

// ownDeadline returns the error of the call for err, the error with which the worker replied. If
// err matches context.DeadlineExceeded, the handler may have run into a deadline that this end has
// too: ownDeadline returns a *TimeoutError if the limit of the call has passed, or else the cause
// of ctx if the deadline of ctx has passed. In all other cases it returns err.
func (c *call) ownDeadline(ctx context.Context, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if c.limit > 0 && time.Since(c.begun) >= c.limit {
		return &TimeoutError{Limit: c.limit}
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return cmp.Or(ctxerr.Cause(ctx), ctxerr.Wrap(context.DeadlineExceeded)) // the timer of ctx may be late
	}
	return err
}

// receiveReply reads the body and the tensors of in, the reply to the call c. It does not decode
// them. Reading a reply that is not inline ends with ctx and with the limit of the call. The error
// is the cause of ctx or a *TimeoutError; or it matches ErrUnreachable or ErrClosed if the pipe
// broke, and ErrResult otherwise.
func (a *Agent) receiveReply(ctx context.Context, c *call, in *inMessage) error {
	if in.dst != nil {
		ctx = in.dst.ctx
	}
	if !in.isInline() {
		defer a.outsideCalls.add(c, CallReading)()
		limited := c.withLimit(ctx)
		defer limited.finish()
		ctx = limited
	}
	err := a.inMessages.receive(ctx, in)
	if cause := ctxerr.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	_, ofPipe := errors.AsType[*pipe.Error](err)
	if ofPipe && (c.conn.pipe.Err() != nil || a.isClosed()) { // the pipe broke, not the message
		return c.conn.lostError(err)
	}
	return withKind(ErrResult, err)
}

// decodeFailure decodes the error with which the worker replied, and returns it as a *RemoteError.
// It never returns nil: if the reply cannot be decoded or an interceptor fails, it returns an error
// that matches ErrResult; if the reply contains no error, one that matches ErrProtocol.
func (a *Agent) decodeFailure(ctx context.Context, in *inMessage) error {
	var remote error
	var stack string
	err := errtext.Join(in.decoder.Decode(&remote), in.decoder.Decode(&stack))
	if err == nil {
		err = a.runDecoded(ctx, &in.view)
	}
	if err != nil {
		return withKind(ErrResult, err)
	}
	if remote == nil {
		return fmt.Errorf("%w: a failure without an error", ErrProtocol)
	}
	if p, ok := remote.(*PanicError); ok && p != nil {
		p.Stack = stack
	}
	return &RemoteError{Err: remote, Stack: stack}
}

// callContext is the context of a handler, or of a goroutine that waits on behalf of a call. It
// ends with its parent, at the deadline of the call with a *TimeoutError as its cause, or when it
// is cancelled. Most handlers do not wait for its end, and most messages are sent without waiting,
// so the context and the timer that this takes are made on first use. Its user must call finish.
type callContext struct {
	parent   context.Context
	deadline time.Time     // zero for none
	limit    time.Duration // of the *TimeoutError

	mu          sync.Mutex
	inner       context.Context // made from parent on first use
	cancelInner context.CancelCauseFunc
	stopTimer   context.CancelFunc
	finished    bool
}

// withLimit returns a context derived from ctx that also ends, with a *TimeoutError as its cause,
// when the limit of the call has passed since c.begun. If c.limit is 0 it ends with ctx only. The
// caller must call finish of the result.
func (c *call) withLimit(ctx context.Context) *callContext {
	limited := &callContext{parent: ctx, limit: c.limit}
	if c.limit > 0 {
		limited.deadline = c.begun.Add(c.limit)
	}
	return limited
}

// Deadline implements context.Context. It returns the deadline of the call or that of the parent
// context, whichever is earlier, and false if neither has one.
func (c *callContext) Deadline() (time.Time, bool) {
	deadline, ok := c.parent.Deadline()
	if c.deadline.IsZero() || ok && deadline.Before(c.deadline) {
		return deadline, ok
	}
	return c.deadline, true
}

// Done implements context.Context. It returns a channel that is closed when the context ends. The
// first use creates an inner context, with a timer if there is a deadline.
func (c *callContext) Done() <-chan struct{} { return c.current(true).Done() }

// Err implements context.Context. It returns nil while the context has not ended;
// context.DeadlineExceeded once the deadline has passed, even if no timer exists; context.Canceled
// if the context was cancelled or finished; or the error of the parent context if that ended first.
func (c *callContext) Err() error { return c.current(false).Err() }

// Value implements context.Context. It returns the parent's value for key. Once an inner context
// exists, Value asks the inner context, in which context.Cause finds the cause. Value itself does
// not check the deadline: context.Cause calls Err before Value, and Err creates the inner context
// if the deadline has passed.
func (c *callContext) Value(key any) any {
	c.mu.Lock()
	ctx := c.inner
	c.mu.Unlock()
	if ctx == nil {
		ctx = c.parent
	}
	return ctx.Value(key)
}

// current returns the inner context. If there is none, it creates one if create is true, if the
// deadline has passed or if finish was called; otherwise it returns the parent. It locks c.mu.
func (c *callContext) current(create bool) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil && !create && !c.finished && (c.deadline.IsZero() || time.Now().Before(c.deadline)) {
		return c.parent
	}
	return c.makeInner()
}

// makeInner returns the inner context, and creates it from the parent and the deadline if there is
// none. The caller holds c.mu.
func (c *callContext) makeInner() context.Context {
	if c.inner != nil {
		return c.inner
	}
	c.inner, c.cancelInner = context.WithCancelCause(c.parent)
	if !c.deadline.IsZero() {
		c.inner, c.stopTimer = context.WithDeadlineCause(c.inner, c.deadline, &TimeoutError{Limit: c.limit})
	}
	if c.finished {
		c.releaseInner()
	}
	return c.inner
}

// cancel ends the context with the given cause. If the context has ended before, the earlier cause
// remains.
func (c *callContext) cancel(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.makeInner()
	c.cancelInner(cause)
}

// finish ends the context with context.Canceled and stops its timer. If the context has ended
// before, the earlier cause remains. It may be called several times.
func (c *callContext) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finished = true
	if c.inner != nil {
		c.releaseInner()
	}
}

// releaseInner cancels the inner context, which must exist, with context.Canceled and stops its
// timer. The caller holds c.mu.
func (c *callContext) releaseInner() {
	c.cancelInner(context.Canceled)
	if c.stopTimer != nil {
		c.stopTimer()
	}
}
