package ferry

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// manners bounds how long the receiver waits for an offer, unless StallTimeout is less,
// and until a sender has received the reason of a failure.
const manners = 10 * time.Second

// Receive serves the sender at the other end of p, and closes p. It returns
// when all files are in place, or when the transfer has failed and what was not
// placed is removed. A failure is told to the sender, the end of ctx too.
//
// The error may match ErrProtocol, ErrChecksum, ErrExists, ErrBusy or ErrLimit,
// be a *NameError or *StallError, of package safetensors or os, or that of the pipe or
// ctx.
func (s *Store) Receive(ctx context.Context, p *pipe.Pipe, w Watcher) error {
	r := &reception{store: s, pipe: p, watch: w, window: newWindow(), open: map[*landing]bool{}, ended: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	stop := context.AfterFunc(ctx, func() { r.end(context.Cause(ctx)) })
	defer stop()
	r.end(r.run())
	r.working.Wait()
	<-p.Done()
	r.clear()
	return r.err
}

// Refuse tells the sender at the other end of p why it is not served, and
// closes p.
func Refuse(p *pipe.Pipe, reason error) {
	r := &reception{pipe: p, ended: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.end(reason)
}

// reception is the receiving end of one transfer. The pipe ends it: whoever
// finds that it is over closes that, and all calls on it return.
type reception struct {
	store *Store
	pipe  *pipe.Pipe
	watch Watcher

	files   []offered
	begun   int      // files
	current *landing // the last one begun
	taken   int      // its tensors

	window  *window
	clock   stallClock
	working sync.WaitGroup
	ctx     context.Context // ends with the transfer
	cancel  context.CancelCauseFunc

	mu     sync.Mutex
	open   map[*landing]bool // begun and not placed
	placed int
	told   atomic.Int64 // files of which the sender was told

	ending atomic.Bool
	ended  chan struct{} // closed when the pipe has been closed or aborted
	err    error         // why the transfer failed
}

// end closes the pipe, after a message to the sender if something is wrong. Where the
// sender has stalled it aborts the pipe, which does not wait for the sender to close its
// end. Only the first call counts; later ones wait for it.
func (r *reception) end(err error) {
	if !r.ending.CompareAndSwap(false, true) {
		<-r.ended // a sync.Once would stop virtual time
		return
	}
	defer close(r.ended)
	r.err = err
	r.cancel(err)
	if _, stalled := errors.AsType[*StallError](err); stalled {
		r.pipe.Abort(err)
		return
	}
	if err != nil && !broken(err) {
		r.complain(err)
	}
	_ = r.pipe.Close() // a sender that stays changes nothing about the result
}

// complain tells the sender what is wrong.
func (r *reception) complain(err error) {
	text := err.Error()
	m, err := say(answer{Fault: text[:min(len(text), maxFault)]})
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), manners)
	defer cancel()
	_ = r.pipe.Write(ctx, m) // a sender that cannot be told sees the pipe end
}

// run takes messages until the pipe ends.
func (r *reception) run() error {
	o, err := r.awaitOffer()
	if err != nil {
		return err
	}
	if err := r.store.admit(); err != nil {
		return err
	}
	defer r.store.dismiss()
	r.working.Go(r.watchStall)
	if err := r.accept(o); err != nil {
		return err
	}
	for {
		in, err := r.pipe.Next(context.Background())
		r.clock.reset()
		if err != nil && r.complete() {
			return nil // the sender has heard all it wanted
		}
		if err != nil {
			return err
		}
		if err := r.take(in); err != nil {
			return err
		}
	}
}

// awaitOffer receives the first message. Until then the sender takes no slot.
func (r *reception) awaitOffer() (*offer, error) {
	limit := min(manners, r.store.options.StallTimeout)
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, r.stalled(limit))
	defer cancel()
	r.store.wait(r.pipe)
	in, err := r.pipe.Next(ctx)
	r.store.endWait(r.pipe)
	if errors.Is(r.pipe.Err(), errCrowded) {
		return nil, errCrowded // whatever the sender has made of that
	}
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	var o order
	if err := hear(in.Descriptor(), &o); err != nil {
		return nil, err
	}
	if o.Offer == nil {
		return nil, brokenf("the first message is no offer")
	}
	if err := expectParts(in.Descriptor(), 0, 0); err != nil {
		return nil, err
	}
	return o.Offer, in.Discard(ctx) // of nothing: the offer was the metadata
}

// accept reserves the names of an offer and answers it.
func (r *reception) accept(o *offer) error {
	if err := r.reserve(o); err != nil {
		return err
	}
	r.pipe.Admit()
	m, err := say(answer{Accepted: true})
	if err != nil {
		return err
	}
	return r.pipe.Write(context.Background(), m)
}

func (r *reception) reserve(o *offer) error {
	r.clock.pause()
	defer r.clock.resume()
	if err := r.store.check(o); err != nil {
		return err
	}
	if err := r.store.reserve(o.Files); err != nil {
		return err
	}
	r.files = o.Files
	total := 0
	for _, f := range o.Files {
		total += f.Bytes
	}
	r.watch.Accepted(len(o.Files), total)
	return nil
}
