package main

import (
	"context"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// tripper makes round trips through a pipe, one at a time.
type tripper struct {
	pipe     *pipe.Pipe
	ctx      context.Context
	stop     func()
	timeout  time.Duration
	patience *time.Timer // ends ctx when a trip takes too long
	compare  bool        // whether every byte
}

func newTripper(ctx context.Context, p *pipe.Pipe, timeout time.Duration, compare bool) *tripper {
	ctx, cancel := context.WithCancelCause(ctx)
	t := &tripper{pipe: p, ctx: ctx, timeout: timeout, compare: compare}
	t.patience = time.AfterFunc(timeout, func() {
		cancel(fmt.Errorf("no answer within %s", timeout))
	})
	t.stop = func() {
		t.patience.Stop()
		cancel(nil)
	}
	return t
}

// trip sends a message, reads its echo and returns how long that took. An echo
// that is not like the message is an error.
func (t *tripper) trip(x *exchange) (time.Duration, error) {
	t.patience.Reset(t.timeout)
	start := time.Now()
	// Write would wait here for an echo to name devices, but the echo may not
	// do so before its own message is read.
	op := t.pipe.WriteAsync(t.ctx, x.sent.message)
	if err := op.Err(); err != nil {
		return 0, err
	}
	if err := t.receive(x); err != nil {
		t.pipe.Abort(err)
		<-op.Done() // until then the message is not ours
		return 0, err
	}
	if err := op.Wait(t.ctx); err != nil {
		return 0, err
	}
	took := time.Since(start)
	if t.compare {
		return took, compareBytes(x.sent, x.back)
	}
	return took, nil
}

func (t *tripper) receive(x *exchange) error {
	in, err := t.pipe.Next(t.ctx)
	if err != nil {
		return err
	}
	if err := compareShape(&x.shape, in.Descriptor()); err != nil {
		return fmt.Errorf("%s is no echo: %w", t.pipe.Peer(), err)
	}
	return in.Read(t.ctx, x.back.memory)
}
