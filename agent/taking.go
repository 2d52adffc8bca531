package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// take decodes the answer to a call.
func (a *Agent) take(ctx context.Context, c *call, answer *arrival, result any) error {
	defer a.arrivals.put(answer)
	if err := a.receiveAnswer(ctx, c, answer); err != nil {
		return err
	}
	c.streams = answer.streams()
	answer.about = Message{Kind: answer.head.kind.public(), Type: c.typ, Name: c.name, Peer: c.conn.peer, decoder: answer.decoder}
	if _, err := a.received(ctx, &answer.about); err != nil {
		return err
	}
	if answer.head.kind == failure {
		return c.overdue(a.takeFailure(ctx, answer))
	}
	if result != nil {
		if err := a.values.Decode(answer.decoder, result); err != nil {
			return marked(ErrResult, err)
		}
	}
	return a.decoded(ctx, &answer.about)
}

// receiveAnswer reads an answer. The time of the call counts until a large one is here.
func (a *Agent) receiveAnswer(ctx context.Context, c *call, answer *arrival) error {
	if !answer.immediate() {
		defer a.aside.enter(c, CallReading)()
		bounded, cancel := c.bound(ctx)
		defer cancel(nil)
		ctx = bounded
	}
	err := a.arrivals.receive(ctx, answer)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	if c.conn.broke(err) {
		return c.conn.lost(err)
	}
	return marked(ErrResult, err)
}

// broke reports whether an error of receiving a message is that of the pipe, rather than
// of what came on it.
func (c *conn) broke(err error) bool {
	_, ok := errors.AsType[*pipe.Error](err)
	return ok && (c.pipe.Err() != nil || c.agent.isClosed())
}

// overdue is the failure of a call, which has timed out where the handler says so: its
// time ends no sooner than the caller's, who just has not noticed yet.
func (c *call) overdue(err error) error {
	if c.limit > 0 && time.Since(c.begun) >= c.limit && errors.Is(err, context.DeadlineExceeded) {
		return &TimeoutError{Limit: c.limit}
	}
	return err
}

// takeFailure decodes the error that a call ended with.
func (a *Agent) takeFailure(ctx context.Context, answer *arrival) error {
	var remote error
	var stack string
	err := errors.Join(answer.decoder.Decode(&remote), answer.decoder.Decode(&stack))
	if err == nil {
		err = a.decoded(ctx, &answer.about)
	}
	if err != nil {
		return marked(ErrResult, err)
	}
	if remote == nil {
		return fmt.Errorf("%w: a failure without an error", ErrProtocol)
	}
	if p, ok := remote.(*PanicError); ok && p != nil {
		p.Stack = stack
	}
	return &RemoteError{Err: remote, Stack: stack}
}
