package filetransfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// messageTimeout bounds the wait for an offer, unless StallTimeout is less, and for the delivery of
// a fault to the sender.
const messageTimeout = 10 * time.Second

// Receive receives the files of the sender at the other end of p, and closes p. It returns when all
// files have their final names, or when the transfer has failed and its part files are removed. The
// reason of a failure, also that ctx has ended, is sent to the sender. w receives the progress.
//
// The error may match ErrProtocol, ErrChecksum, ErrExists, ErrBusy or ErrLimit, be a *NameError or
// *StallError, or one of package safetensors or os, or that of the pipe or ctx.
func (s *Store) Receive(ctx context.Context, p *pipe.Pipe, w Watcher) error {
	r := &receiver{store: s, pipe: p, watch: w, window: newWindow(), open: map[*partFile]bool{}, ended: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	stop := context.AfterFunc(ctx, func() { r.end(context.Cause(ctx)) })
	defer stop()
	r.end(r.run())
	r.working.Wait()
	<-p.Done()
	for file := range r.open {
		file.abandon()
	}
	s.free(r.files)
	return r.err
}

// Reject sends the reason to the sender at the other end of p, which a receiver does not serve, and
// closes p.
func Reject(p *pipe.Pipe, reason error) {
	r := &receiver{pipe: p, ended: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.end(reason)
}

// receiver is the receiving end of one transfer. The first of its goroutines that finds that the
// transfer has ended or failed calls end, which closes the pipe and thereby ends the calls of the
// others.
type receiver struct {
	store *Store
	pipe  *pipe.Pipe
	watch Watcher

	files           []fileOffer
	filesStarted    int
	current         *partFile // the last file that was started
	tensorsReceived int       // of current

	window  *window
	clock   stallClock
	working sync.WaitGroup
	ctx     context.Context // ends with the transfer
	cancel  context.CancelCauseFunc

	mu       sync.Mutex
	open     map[*partFile]bool // started, without their final names
	placed   int
	reported atomic.Int64 // files that were confirmed to the sender

	ending atomic.Bool
	ended  chan struct{} // closed when the pipe has been closed or aborted
	err    error         // why the transfer failed
}

// end ends the transfer with the result err, where nil stands for success, and closes the pipe. If err
// is not nil, it first sends err to the sender, and waits at most messageTimeout for that. If the
// sender has stalled, it aborts the pipe instead, which does not wait for the sender. Only the first
// call has an effect; later ones block until that has returned.
func (r *receiver) end(err error) {
	if !r.ending.CompareAndSwap(false, true) {
		<-r.ended // waiting in a sync.Once would stop the virtual time of synctest
		return
	}
	defer close(r.ended)
	r.err = err
	r.cancel(err)
	if _, stalled := errors.AsType[*StallError](err); stalled {
		r.pipe.Abort(err)
		return
	}
	if err != nil && !pipeEnded(err) {
		text := err.Error()
		if m, err := encode(receiverMessage{Fault: text[:min(len(text), maxFault)]}); err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), messageTimeout)
			_ = r.pipe.Write(ctx, m) // if this fails the sender gets the error of the pipe
			cancel()
		}
	}
	_ = r.pipe.Close() // the result does not depend on how the sender closes
}

// run receives the offer and the files that follow. It returns nil when the sender has closed the pipe
// after all files were confirmed, and otherwise the first error. Writes to disk may still run then.
func (r *receiver) run() error {
	o, err := r.awaitOffer()
	if err != nil {
		return err
	}
	if err := r.store.acquireSlot(); err != nil {
		return err
	}
	defer r.store.releaseSlot()
	r.working.Go(r.watchStall)
	if err := r.accept(o); err != nil {
		return err
	}
	for {
		in, err := r.pipe.Next(context.Background())
		r.clock.reset()
		if err != nil && r.complete() {
			return nil // the sender has received all confirmations and closed the pipe
		}
		if err != nil {
			return err
		}
		if err := r.receiveMessage(in); err != nil {
			return err
		}
	}
}

// awaitOffer receives the sender's offer, without a slot of the store. The error is a *StallError if
// the offer does not arrive in time. It matches ErrLimit if too many senders that connected later wait
// too, and ErrProtocol if the first message is no offer. Otherwise it is that of the pipe.
func (r *receiver) awaitOffer() (*offer, error) {
	limit := min(messageTimeout, r.store.options.StallTimeout)
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, r.stalled(limit))
	defer cancel()
	r.store.addWaiting(r.pipe)
	in, err := r.pipe.Next(ctx)
	r.store.removeWaiting(r.pipe)
	if errors.Is(r.pipe.Err(), errTooManyWaiting) {
		return nil, errTooManyWaiting // the pipe may report another error of the sender
	}
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	var o senderMessage
	if err := decode(in.Descriptor(), &o); err != nil {
		return nil, err
	}
	if o.Offer == nil {
		return nil, protocolErrorf("the first message is not an offer")
	}
	if err := expectParts(in.Descriptor(), 0, 0); err != nil {
		return nil, err
	}
	return o.Offer, in.Discard(ctx) // there are no parts
}

// accept checks an offer, reserves its file names and sends the acceptance. The error is that of
// Store.check or Store.reserve, or that of the pipe.
func (r *receiver) accept(o *offer) error {
	if err := r.reserve(o); err != nil {
		return err
	}
	r.pipe.Admit()
	m, err := encode(receiverMessage{Accepted: true})
	if err != nil {
		return err
	}
	return r.pipe.Write(context.Background(), m)
}

// reserve checks an offer, reserves its file names, and reports it to the watcher. The error is that of
// Store.check or Store.reserve.
func (r *receiver) reserve(o *offer) error {
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

// StallError is returned when nothing has arrived from the sender for too long.
type StallError struct {
	Sender string        // the address of the sender
	Waited time.Duration // StoreOptions.StallTimeout, or less for an offer
}

func (e *StallError) Error() string {
	return fmt.Sprintf("the sender %s stalled: nothing arrived from it for %s", e.Sender, e.Waited)
}

// stallChecks is the number of checks for progress in one StallTimeout. A stall is found after
// one more check at the latest.
const stallChecks = 8

// stallClock records whether a receiver waits for its sender or is busy itself, for example with its
// disk, and whether the transfer has made progress. Its methods may be called concurrently.
type stallClock struct {
	busy  atomic.Int64  // calls between pause and resume
	steps atomic.Uint64 // number of resets
}

// pause marks the receiver as busy until resume has been called as many times as pause.
func (c *stallClock) pause() { c.busy.Add(1) }

// resume reverts one call of pause. It counts as progress.
func (c *stallClock) resume() {
	c.reset() // before busy changes, so that watchStall sees one of the two
	c.busy.Add(-1)
}

// reset records progress of the transfer, so that the wait for the sender begins again.
func (c *stallClock) reset() { c.steps.Add(1) }

// watchStall ends the transfer with a *StallError after stallChecks consecutive checks without
// progress, and returns when the transfer ends. It counts checks and not time, so that a stop of the
// receiver itself is not taken for a stall.
func (r *receiver) watchStall() {
	limit := r.store.options.StallTimeout
	check := time.NewTicker(max(limit/stallChecks, 1))
	defer check.Stop()
	var steps, bytes uint64
	for idle := 0; idle < stallChecks; idle++ {
		select {
		case <-check.C:
		case <-r.ctx.Done():
			return
		}
		busy := r.clock.busy.Load() > 0
		nowSteps, nowBytes := r.clock.steps.Load(), r.pipe.Stats().Progress
		if busy || nowSteps != steps || nowBytes != bytes {
			steps, bytes, idle = nowSteps, nowBytes, -1
		}
	}
	r.end(r.stalled(limit))
}

// stalled returns the error of a sender from which nothing has arrived for that time.
func (r *receiver) stalled(waited time.Duration) error {
	return &StallError{Sender: r.pipe.RemoteAddr(), Waited: waited}
}
