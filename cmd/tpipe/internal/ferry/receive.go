package ferry

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// manners is how long a sender may take to make its offer, and to hear what is
// wrong with it.
const manners = 10 * time.Second

// Receive serves the sender at the other end of p, and closes p. It returns
// when all files are in place, or when the transfer has failed and what was not
// placed is removed. A failure is told to the sender, the end of ctx too.
//
// The error may match ErrProtocol, ErrChecksum, ErrExists, ErrBusy or ErrLimit,
// be a *NameError, of package safetensors or os, or that of the pipe or ctx.
func (s *Store) Receive(ctx context.Context, p *pipe.Pipe, w Watcher) error {
	r := &reception{store: s, pipe: p, watch: w, window: newWindow(), open: map[*landing]bool{}}
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
	r := &reception{pipe: p}
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
	working sync.WaitGroup
	ctx     context.Context // ends with the transfer
	cancel  context.CancelCauseFunc

	mu     sync.Mutex
	open   map[*landing]bool // begun and not placed
	placed int
	told   atomic.Int64 // files of which the sender was told

	once sync.Once
	err  error // why the transfer failed
}

// end closes the pipe, with a last word to the sender if something is wrong.
// Only the first call counts.
func (r *reception) end(err error) {
	r.once.Do(func() {
		r.err = err
		r.cancel(err)
		if err != nil && !broken(err) {
			r.complain(err)
		}
		_ = r.pipe.Close() // a sender that stays changes nothing about the result
	})
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
	if err := r.store.admit(); err != nil {
		return err
	}
	defer r.store.dismiss()
	if err := r.agree(); err != nil {
		return err
	}
	for {
		in, err := r.pipe.Next(context.Background())
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

// agree answers the offer.
func (r *reception) agree() error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), manners, brokenf("no offer within %s", manners))
	defer cancel()
	in, err := r.pipe.Next(ctx)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	var o order
	if err := hear(in.Descriptor(), &o); err != nil {
		return err
	}
	if o.Offer == nil {
		return brokenf("the first message is no offer")
	}
	if err := expectParts(in.Descriptor(), 0, 0); err != nil {
		return err
	}
	if err := in.Discard(ctx); err != nil { // of nothing: the offer was the metadata
		return err
	}
	if err := r.accept(o.Offer); err != nil {
		return err
	}
	r.pipe.Admit()
	m, err := say(answer{Accepted: true})
	if err != nil {
		return err
	}
	return r.pipe.Write(ctx, m)
}

func (r *reception) accept(o *offer) error {
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
