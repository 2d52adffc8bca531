package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/ferry"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// harbour is a recv that listens, with all the senders that come.
type harbour struct {
	*recv
	store  *ferry.Store
	out    io.Writer
	screen *screen

	serving sync.WaitGroup
	mu      sync.Mutex
	cut     bool // a transfer was cut short by a signal
}

// errTaken is for senders that come second.
var errTaken = errors.New("it was started with -once and serves another sender")

// serve receives from all senders that come until ctx ends, or with -once from
// the first one.
func (h *harbour) serve(ctx context.Context, l *pipe.Listener) error {
	accepting, stop := context.WithCancel(ctx)
	defer stop()
	var result error // of -once
	for senders := 0; ; senders++ {
		p, err := l.Accept(accepting)
		if err != nil {
			h.serving.Wait()
			return h.verdict(ctx, senders, errors.Join(result, whyAcceptFailed(accepting, err)))
		}
		h.serving.Go(func() {
			switch {
			case !h.once:
				h.receiveFrom(ctx, p)
			case senders == 0:
				result = h.receive(ctx, p)
				stop()
			default:
				ferry.Refuse(p, errTaken)
			}
		})
	}
}

// verdict is the result of the command: err, unless a signal is to blame.
func (h *harbour) verdict(ctx context.Context, senders int, err error) error {
	if ctx.Err() != nil && (h.cut || h.once && senders == 0) {
		return errInterrupted
	}
	return err
}

// receiveFrom serves one sender of many, whose failure concerns no other.
func (h *harbour) receiveFrom(ctx context.Context, p *pipe.Pipe) {
	if err := h.receive(ctx, p); err != nil {
		h.screen.warn("tpipe recv: " + oneLine(err))
	}
}

// receive serves one sender and prints what came of it.
func (h *harbour) receive(ctx context.Context, p *pipe.Pipe) error {
	t := newTransfer(p, "from", h.screen, h.show.verbose)
	err := h.store.Receive(ctx, p, t)
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) { // and not what had failed before
		h.mu.Lock()
		h.cut = true
		h.mu.Unlock()
		err = errInterrupted
	}
	t.finish(err)
	if err != nil {
		err = fmt.Errorf("from %s: %w", t.who(), err)
	}
	return errors.Join(err, h.tell(t, err))
}

// tell prints a transfer: as JSON whatever came of it.
func (h *harbour) tell(t *transfer, failed error) error {
	if failed != nil && !h.show.json {
		return nil
	}
	h.mu.Lock() // one object after the other
	defer h.mu.Unlock()
	return t.print(h.out, h.show.json)
}
