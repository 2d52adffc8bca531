package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

var errGoexitWaiting = errors.New("the goroutine of the caller has ended")

// wait blocks until the call has ended and returns its reply, which the caller decodes or drops.
// The error is that of the call, the cause of ctx, or a *TimeoutError after the limit. Nothing
// uses the call after wait, even if a function of the application that runs during the wait ends
// the goroutine, as FailNow of a test does.
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

// waitForReply does the work of wait, which handles the case that the goroutine ends. It polls for
// the reply first, which is fastest if the reply comes at once, and then blocks. When ctx or the
// limit ends it aborts the call.
func (c *call) waitForReply(ctx context.Context) (*inMessage, error) {
	if r := requestOf(ctx); r != nil && c.nested {
		r.slot.yieldLeader() // before it reads other messages, whose handlers may wait in turn
	}
	if c.conn.pollFor(c) {
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
	if err := c.block(ctx, expired); err != nil {
		return c.abort(err)
	}
	return c.reply, c.err
}

// block waits and returns nil once the call has ended. If ctx ends first, it returns the cause of
// ctx; if expired, the timer of the limit, fires first, a *TimeoutError. The caller must then
// abort the call. Unless another caller leads, block reads the messages of the connection while it
// waits: the reply then needs no switch from the read loop's goroutine.
func (c *call) block(ctx context.Context, expired <-chan time.Time) error {
	conn := c.conn
	var next <-chan *pipe.Incoming // nil for a follower
	var down <-chan struct{}
	if conn.waitLock.TryLock() {
		c.leader = leader{lock: &conn.waitLock}
		defer c.leader.finish()
		next, down = conn.pipe.NextCh(), conn.down
	}
	for {
		select {
		case in := <-next:
			conn.dispatch(in, &c.leader)
			if c.leader.yielded {
				next, down = nil, nil
			}
		case <-down: // the read loop completes all calls once no caller leads
			c.leader.yield()
			next, down = nil, nil
		case <-c.completed:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-expired:
			return &TimeoutError{Limit: c.limit}
		}
	}
}

// cancel removes a call from the table, sends a cancellation with the cause to the worker that was
// called, and returns true. It returns false if the call has ended otherwise. When it returns, the
// memory of the arguments is free.
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
		about := Message{Kind: KindCancel, Type: c.typ, Name: c.name, Peer: conn.peer}
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

// abort cancels a call that has no observer, for the goroutine that waited for it, and returns
// cause. If the call has already ended it returns the reply or the error of the call instead.
func (c *call) abort(cause error) (*inMessage, error) {
	if c.cancel(cause) {
		return nil, cause
	}
	<-c.completed
	return c.reply, c.err
}

// decodeReply reads the reply in of a call, decodes it to the variable to which result points,
// unless result is nil, and sets c.streams. It returns in to its pool. The error is a *RemoteError
// for a failure, a *TimeoutError, the cause of ctx, that of an interceptor, or one that matches
// ErrResult, ErrProtocol, ErrUnreachable or ErrClosed.
func (a *Agent) decodeReply(ctx context.Context, c *call, in *inMessage, result any) error {
	defer a.inMessages.put(in)
	if a.events.CallEnded != nil {
		d := in.incoming.Descriptor()
		c.replyBytes = len(d.Metadata) + d.Bytes()
	}
	if err := a.receiveReply(ctx, c, in); err != nil {
		return err
	}
	c.streams = in.streams()
	in.view = Message{Kind: in.head.Kind, Type: c.typ, Name: c.name, Peer: c.conn.peer, decoder: in.decoder}
	if _, err := a.runReceived(ctx, &in.view); err != nil {
		return err
	}
	if in.head.Kind == KindFailure {
		err := a.decodeFailure(ctx, in)
		if c.limit > 0 && time.Since(c.begun) >= c.limit && errors.Is(err, context.DeadlineExceeded) {
			// The handler's deadline is no earlier than the limit here, which has passed as well.
			return &TimeoutError{Limit: c.limit}
		}
		return err
	}
	if result != nil {
		if err := a.values.Decode(in.decoder, result); err != nil {
			return withKind(ErrResult, err)
		}
	}
	return a.runDecoded(ctx, &in.view)
}

// receiveReply reads the body and the tensors of a reply, a large one within ctx and the limit of
// the call. The error is the cause of that context, matches ErrUnreachable or ErrClosed if the
// pipe broke, and ErrResult otherwise.
func (a *Agent) receiveReply(ctx context.Context, c *call, in *inMessage) error {
	if !in.isInline() {
		defer a.outsideCalls.add(c, CallReading)()
		limited := c.withLimit(ctx)
		defer limited.finish()
		ctx = limited
	}
	err := a.inMessages.receive(ctx, in)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	_, ofPipe := errors.AsType[*pipe.Error](err)
	if ofPipe && (c.conn.pipe.Err() != nil || a.isClosed()) { // the pipe broke, not the message
		return c.conn.lostError(err)
	}
	return withKind(ErrResult, err)
}

// decodeFailure decodes the error in a failure and returns it as a *RemoteError. If the failure
// cannot be decoded, it returns an error that matches ErrResult; if the failure contains no error,
// one that matches ErrProtocol.
func (a *Agent) decodeFailure(ctx context.Context, in *inMessage) error {
	var remote error
	var stack string
	err := errors.Join(in.decoder.Decode(&remote), in.decoder.Decode(&stack))
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
