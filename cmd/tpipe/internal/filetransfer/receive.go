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

// Receive receives the files of the sender at the other end of p, and closes p in any case. If it
// returns nil, all files have their final names. After an error, files that are complete stay. Part
// files with which a sender can resume are kept if the sender stalled, was lost or has ended the
// transfer, or ctx has ended; after another error they are removed. Receive sends the reason of a
// failure to the sender, unless the sender has ended the transfer or was lost. It calls w with the
// progress.
//
// The error may match ErrVersion, ErrProtocol, ErrChecksum, ErrExists, ErrBusy or ErrLimit, or be a
// *NameError, *StallError or *StopError. It may also be another one, for example of package
// safetensors or os, of the pipe, or the cause of ctx.
func (s *Store) Receive(ctx context.Context, p *pipe.Pipe, w Watcher) error {
	buffers := newBuffers(s.options.Memory)
	r := &receiver{
		store: s, pipe: p, watch: w, buffers: buffers, chunks: make(chan *chunk, cap(buffers.slots)),
		written: make(chan writtenBytes, cap(buffers.slots)), complete: make(chan *partFile, maxUnplaced),
		open: map[*partFile]bool{}, ended: make(chan struct{}),
	}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	stop := context.AfterFunc(ctx, func() {
		r.interrupted.Store(true)
		r.end(context.Cause(ctx))
	})
	defer stop()
	r.writing.Go(r.writeChunks)
	r.writing.Go(r.flushFiles)
	r.writing.Go(r.placeFiles)
	r.end(r.run())
	if !r.stopped {
		r.finishWriting()
	}
	r.working.Wait()
	<-p.Done()
	s.free(r.files)
	return r.err
}

// Reject sends reason to the sender at the other end of p, whose files are not received, and closes
// p. Sending takes at most ten seconds; if it fails, p is closed nevertheless.
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

	files        []fileOffer
	resume       bool
	filesStarted int
	current      *partFile // the last file that was started

	buffers     *buffers
	chunks      chan *chunk       // in the order of the sender, for writeChunks
	written     chan writtenBytes // for flushFiles
	complete    chan *partFile    // for placeFiles
	writing     sync.WaitGroup    // goroutines that receive, write, flush and place
	working     sync.WaitGroup    // other goroutines
	stopped     bool              // the sender has stopped, and writing has ended
	interrupted atomic.Bool       // the context of Receive has ended
	clock       stallClock
	ctx         context.Context // ends with the transfer
	cancel      context.CancelCauseFunc

	mu     sync.Mutex
	found  []*found           // of the files in their order
	open   map[*partFile]bool // started, without their final names
	placed int

	ending atomic.Bool
	ended  chan struct{} // closed when the pipe has been closed or aborted
	err    error         // why the transfer failed
}

// end ends the transfer with the result err, where nil stands for success: it sets r.err, cancels
// r.ctx and closes the pipe, or aborts the pipe if err is a *StallError. Before it closes the pipe
// it sends the text of err to the sender, which takes at most messageTimeout, unless err is nil, is
// a *StopError, or reports that the sender has ended the pipe. Only the first call has an effect;
// later calls block until the first has returned.
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
	_, stopped := errors.AsType[*StopError](err)
	if err != nil && !stopped && !pipeEnded(err) {
		text := err.Error()
		if m, err := encode(receiverMessage{Fault: text[:min(len(text), maxFault)]}); err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), messageTimeout)
			_ = r.pipe.Write(ctx, m) // if this fails the sender gets the error of the pipe
			cancel()
		}
	}
	_ = r.pipe.Close() // the result does not depend on how the sender closes
}

// run receives the offer and the files that follow. It returns nil when the pipe has ended after
// all files got their final names, and otherwise an error. Goroutines of r.writing and r.working
// may still run then. It does not close the pipe.
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
		if err != nil && r.allPlaced() {
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

// awaitOffer waits for the sender's first message and returns the offer in it. The error is a
// *StallError if no message arrives within ten seconds, or StallTimeout if that is less. It matches
// ErrLimit if the pipe was aborted because too many senders that have connected later wait too, and
// ErrProtocol if the message is no offer. Otherwise it is that of the pipe.
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

// accept checks the offer o, reserves its file names, admits the peer, whose bytes then no longer
// count as those of an unknown peer, and sends the acceptance. If the sender asks to resume, it
// also starts a goroutine that calls r.reportFound. The error is that of r.reserve or of the pipe.
func (r *receiver) accept(o *offer) error {
	if err := r.reserve(o); err != nil {
		return err
	}
	r.pipe.Admit()
	m, err := encode(receiverMessage{Accepted: true})
	if err != nil {
		return err
	}
	if err := r.pipe.Write(context.Background(), m); err != nil {
		return err
	}
	if o.Resume {
		r.working.Go(func() {
			if err := r.reportFound(); err != nil {
				r.end(err)
			}
		})
	}
	return nil
}

// reportFound finds the bytes of each file that the store has, appends the result to r.found, and
// reports it to the sender. The error is that of the pipe, or the cause of r.ctx.
func (r *receiver) reportFound() error {
	for i, f := range r.files {
		r.clock.pause()
		had, err := r.store.find(r.ctx, f)
		r.clock.resume()
		if err != nil {
			return err
		}
		had.File = i
		r.mu.Lock()
		r.found = append(r.found, had) // before the sender may refer to it
		r.mu.Unlock()
		m, err := encode(receiverMessage{Found: &had.fileFound})
		if err != nil {
			return err
		}
		if err := r.pipe.Write(context.Background(), m); err != nil {
			return err
		}
	}
	return nil
}

// foundOf returns the found bytes of the file with that index, or nil if they are not known.
func (r *receiver) foundOf(file int) *found {
	r.mu.Lock()
	defer r.mu.Unlock()
	if file >= len(r.found) {
		return nil
	}
	return r.found[file]
}

// stop handles o, the last message of a sender that has stopped. It writes the chunks that have
// arrived and completes the files that have all their bytes. If all files are complete it returns
// nil. Otherwise it reports the part files that it keeps to the sender and to the watcher, and
// returns a *StopError, or the error of the pipe. If the sender has stopped before, the error
// matches ErrProtocol.
func (r *receiver) stop(o *stop) error {
	if r.stopped {
		return protocolErrorf("it has stopped twice")
	}
	r.clock.pause()
	defer r.clock.resume()
	r.stopped = true
	kept := r.finishWriting()
	if r.allPlaced() {
		return nil
	}
	m, err := encode(receiverMessage{Stopped: &stopped{kept}})
	if err != nil {
		return err
	}
	if err := r.pipe.Write(context.Background(), m); err != nil {
		return err
	}
	return &StopError{o.Reason}
}

// finishWriting closes r.chunks and waits for the goroutines of r.writing. Unless the transfer has
// failed, these write all chunks that have arrived and complete the files that have all their
// bytes. finishWriting then abandons the other part files, reports those that it keeps to the
// watcher, and returns them. It is called once.
func (r *receiver) finishWriting() []fileKept {
	close(r.chunks)
	r.writing.Wait()
	keep := r.ctx.Err() == nil || r.resumable(r.err)
	var all []fileKept
	for p := range r.open {
		if kept := p.abandon(keep); kept > 0 {
			all = append(all, fileKept{p.index, kept})
			r.watch.Kept(p.Name, kept)
		}
	}
	return all
}

// resumable reports whether a sender may resume a transfer that has failed with err: the sender or
// this receiver was interrupted, or the network.
func (r *receiver) resumable(err error) bool {
	_, stalled := errors.AsType[*StallError](err)
	return stalled || pipeEnded(err) || r.interrupted.Load()
}

// reserve checks the offer o, reserves its file names in the store, stores the files in r.files,
// and reports them to the watcher. The error is that of Store.check or Store.reserve; no name is
// reserved then.
func (r *receiver) reserve(o *offer) error {
	r.clock.pause()
	defer r.clock.resume()
	if err := r.store.check(o); err != nil {
		return err
	}
	if err := r.store.reserve(o.Files, o.Resume); err != nil {
		return err
	}
	r.mu.Lock()
	r.files, r.resume = o.Files, o.Resume
	r.mu.Unlock()
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

// pause marks the receiver as busy until resume is called: the time until then does not count as a
// wait for the sender. Calls may overlap: the receiver is busy until resume has been called as
// often as pause.
func (c *stallClock) pause() { c.busy.Add(1) }

// resume ends the busy time that one call of pause has begun. It also records progress, as reset
// does.
func (c *stallClock) resume() {
	c.reset() // before busy changes, so that watchStall sees one of the two
	c.busy.Add(-1)
}

// reset records that the transfer has made progress, so that the time until a stall begins again.
func (c *stallClock) reset() { c.steps.Add(1) }

// watchStall checks the transfer for progress stallChecks times per StallTimeout. After stallChecks
// consecutive checks without progress, at which the receiver was not busy either, it ends the
// transfer with a *StallError. It returns when the transfer ends. It counts checks and not time, so
// that a pause of the receiver's own process is not taken for a stall.
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

// stalled returns a *StallError about this transfer's sender, from which nothing has arrived for
// the time waited. It does not end the transfer.
func (r *receiver) stalled(waited time.Duration) error {
	return &StallError{Sender: r.pipe.RemoteAddr(), Waited: waited}
}
