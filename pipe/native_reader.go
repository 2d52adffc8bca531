package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/budget"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// nativeReader is the receiving half of a pipe in the native dialect. Its run loop (run, a goroutine
// of the pipe) reads messages with their inline parts before the application asks for them, within
// the limits on reading ahead; beyond those the window of the stream stops the sender.
//
// If the stream can be polled, a caller of Next polls it for a bounded time before it blocks, and
// the run loop reads only while no caller polls. So a message that arrives soon needs no switch of
// goroutines.
type nativeReader struct {
	pipe        *nativePipe
	stream      streamReader
	resumeTimer resumeTimer
	readMu      sync.Mutex           // held to read messages and to pass them on in order
	demand      atomic.Int32         // calls that want a message, less the messages in ready
	polling     atomic.Bool          // a caller of Next or TryNext holds readMu
	ready       chan *nativeIncoming // messages for Next, in order; closed at the end
	readAhead   *budget.Budget       // bounds the bytes of messages that Next has not returned

	recvMu sync.Mutex // serializes calls of Channel.Recv

	mu          sync.Mutex
	received    uint64                     // number of messages so far
	reads       int                        // Reads of messages with parts that are not inline
	readsEnded  bool                       // no more such Reads may begin
	readsDone   chan struct{}              // made by awaitReads, closed once reads is 0
	open        map[uint64]*nativeIncoming // messages with parts that are not inline, until they are finished
	earlyAborts earlyAborts

	traffic traffic
	saved   savings
}

func (i *nativeReader) init(p *nativePipe) {
	i.pipe = p
	i.ready = make(chan *nativeIncoming, p.context.limits.MaxReadAheadMessages)
	i.readAhead = budget.New(p.context.limits.ReadAheadBytes)
	i.open = map[uint64]*nativeIncoming{}
	i.earlyAborts.account = p.account
}

// attach gives the reader its stream, before any other method but init is called.
func (i *nativeReader) attach(s transport.Stream) {
	i.stream.init(i.pipe, s)
	if i.stream.poller != nil {
		i.resumeTimer.init(&i.stream)
	}
}

// next implements engine. It first polls for a message.
func (p *nativePipe) next(ctx context.Context) (*Incoming, error) {
	i := &p.in
	for {
		i.demand.Add(1)
		in := i.pollReady(ctx, false)
		if in == nil {
			var err error
			select {
			case ready, ok := <-i.ready:
				if ok {
					in = i.takeReady(ready)
				} else {
					err = p.endError()
				}
			case <-p.closing:
				err = ErrClosed
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
			if err != nil {
				i.demand.Add(-1)
				return nil, p.errorFor("next", "", err)
			}
		}
		if i.deliver(in) {
			return &in.Incoming, nil
		}
	}
}

// takeReady returns in, which the caller has received from ready. If other callers wait for
// messages it first resumes the run loop: the inline bytes of in may precede their messages in the
// stream.
func (i *nativeReader) takeReady(in *nativeIncoming) *nativeIncoming {
	if i.demand.Load() > 0 {
		i.resumeLoop()
	}
	return in
}

// deliver prepares in for its return by Next or TryNext: it releases the message's share of the
// read-ahead budget. If the peer has aborted the message, it ends the message and reports false;
// the caller then drops it.
func (i *nativeReader) deliver(in *nativeIncoming) bool {
	if in.readAhead > 0 {
		i.readAhead.Release(in.readAhead)
	}
	aborted := i.isAborted(in)
	if aborted {
		in.claimed.Store(true)
		i.pipe.control.noteRead(in.number)
		in.finish()
	}
	return !aborted
}

func (i *nativeReader) isAborted(in *nativeIncoming) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return in.aborted != nil
}

// run reads messages until the stream ends, and then closes ready. It is the run loop, a goroutine of
// the pipe.
//
// If the peer has closed its end, run then ends this direction too. Before that it waits until all
// writes of this end are complete; the peer discards these messages. Once the session has ended no Read
// of parts that are not inline may begin. Those under way have CloseTimeout to end, because all their
// bytes have been sent; after that the pipe fails.
func (i *nativeReader) run() {
	i.finish(i.receiveAll())
	close(i.ready)
	p := i.pipe
	if !isClosed(p.peerEnded) {
		return
	}
	select {
	case <-p.sender.idle():
		p.endMessages(context.Background())
	case <-p.down:
	}
	select {
	case <-p.session.Done():
	case <-p.down:
		return
	}
	i.mu.Lock()
	i.readsEnded = true
	i.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), p.context.opts.CloseTimeout)
	defer cancel()
	if i.awaitReads(ctx) != nil {
		p.fail(p.errorFor("read", "bulk", fmt.Errorf("%w: it closed its end, and parts of its messages are missing", ErrPeerLost)))
	}
}

// receiveAll reads messages until the stream or the pipe fails, and returns the error, io.EOF for
// an orderly end. While there is no data it blocks in Poller.Wait, and while the inline bytes of a
// message are left to Read it parks.
func (i *nativeReader) receiveAll() error {
	for {
		switch err := i.receive(); err {
		case errNoData:
			i.stream.overdue = false
			i.stream.poller.Wait()
		case errMessageOpen:
			i.park()
		default:
			return err
		}
	}
}

// receive reads messages and enqueues them, until it returns errNoData, errMessageOpen or the error of
// the stream or pipe. A message must be admitted by the read-ahead budget before its descriptor is
// decoded, because that takes a multiple of its bytes. The descriptor of a message that is returned
// early has been decoded already, and such a message ends the call with errMessageOpen.
func (i *nativeReader) receive() error {
	i.readMu.Lock()
	defer i.readMu.Unlock()
	for {
		in, err := i.read()
		if err != nil {
			return err
		}
		in.readAhead = in.cost()
		if !i.readAhead.Acquire(context.Background(), i.pipe.down, in.readAhead) {
			return i.pipe.Err()
		}
		if in.body != nil {
			err = in.decode()
		}
		if err != nil {
			i.stream.mu.Lock()
			defer i.stream.mu.Unlock()
			i.stream.err = err
			return err
		}
		early := in.inlineLength > 0
		if err := i.enqueue(in); err != nil {
			return err
		}
		if early {
			return errMessageOpen
		}
	}
}

// nativeError returns err, an error about a frame of the peer, as one that matches ErrProtocol,
// ErrLimit or ErrChecksum. It returns nil for nil.
func nativeError(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, native.ErrChecksum) {
		return errors.Join(ErrChecksum, err)
	}
	if errors.Is(err, native.ErrLimit) {
		return protocolError("%w: %w", ErrLimit, err)
	}
	return protocolError("%w", err)
}

// enqueue numbers a message and passes it to a receiver from NextCh, or to ready if there is no
// receiver. It blocks while ready is full. If the pipe goes down first it returns the cause. The caller
// holds readMu.
func (i *nativeReader) enqueue(in *nativeIncoming) error {
	i.register(in)
	if readAhead := in.readAhead; len(i.ready) == 0 && !i.isAborted(in) && i.pipe.sendNext(&in.Incoming) {
		if readAhead > 0 {
			i.readAhead.Release(readAhead)
		}
		return nil
	}
	i.demand.Add(-1)
	select {
	case i.ready <- in:
		return nil
	case <-i.pipe.down:
		return i.pipe.Err()
	}
}

// register numbers a message. If it has parts that are not inline it enters it in open, so that the
// peer can abort it, or marks it as aborted if the peer has done that already.
func (i *nativeReader) register(in *nativeIncoming) {
	i.mu.Lock()
	defer i.mu.Unlock()
	in.number = i.received
	i.received++
	aborted := i.earlyAborts.take(in.number)
	switch {
	case in.large == 0: // it is complete, also if the sender aborted it
	case aborted != nil:
		in.aborted = aborted
	default:
		i.open[in.number] = in
	}
}

// handleAbort acts on the peer's ABORT frame for the message with this number: it aborts the
// message's transfers, or keeps the abort for a message that has not arrived. A finished message is
// left alone. The error matches ErrProtocol if too many aborts precede their messages.
func (i *nativeReader) handleAbort(number uint64, reason string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if in := i.open[number]; in != nil {
		in.abort(withReason(ErrAborted, reason))
		return nil
	}
	if number < i.received {
		return nil // it is finished here
	}
	return i.earlyAborts.add(number, reason)
}

// finish handles the end of the message stream with err. If err is io.EOF it waits for the peer's close
// frame. If there is one, it closes peerEnded, and the pipe stays up, so that received messages can be
// read. In all other cases it fails the pipe. A close frame does not make any other end orderly,
// because messages may be missing: a peer that closes ends its message stream before its session, also
// where both ends close at once.
func (i *nativeReader) finish(err error) {
	p := i.pipe
	if err != io.EOF { // an error that wraps io.EOF is the end of the session
		why := p.sessionError(err)
		if closed, reason := p.control.peerClose(); closed && reason == "" && !errors.Is(why, ErrProtocol) {
			why = fmt.Errorf("%w: it sent a close frame, and its messages broke off: %w", ErrPeerLost, err)
		}
		p.fail(p.errorFor("connection", "message", why))
		return
	}
	p.awaitSessionEnd()
	closed, reason := p.control.peerClose()
	if !closed {
		err = p.sessionError(err) // waits once more for a late close frame
		closed, reason = p.control.peerClose()
	}
	if !closed {
		p.fail(p.errorFor("connection", "message", err))
		return
	}
	end := p.errorFor("next", "message", withReason(ErrPeerClosed, reason))
	p.mu.Lock()
	p.end = end
	p.mu.Unlock()
	close(p.peerEnded)
}

// awaitReads waits until no Read of parts that are not inline is under way, or the pipe is down. If
// ctx ends first the error matches ErrCloseTimeout. Close calls it before it sends the close frame,
// at which the peer would cancel those transfers.
func (i *nativeReader) awaitReads(ctx context.Context) error {
	i.mu.Lock()
	i.readsDone = cmp.Or(i.readsDone, make(chan struct{}))
	readsDone := i.readsDone
	i.countReads(0)
	i.mu.Unlock()
	if !closedBefore(ctx, readsDone, i.pipe.down) {
		return fmt.Errorf("%w: messages are still being read", ErrCloseTimeout)
	}
	return nil
}

// countReads adds n, which may be negative, to reads, and closes readsDone when there are none. The
// caller holds mu.
func (i *nativeReader) countReads(n int) {
	i.reads += n
	if i.reads == 0 && i.readsDone != nil {
		close(i.readsDone)
		i.readsDone = nil
	}
}

// drain discards messages that are not claimed and those that arrive while the pipe closes, so that
// the peer's writes complete. It returns when the run loop has ended or the pipe is down.
func (p *nativePipe) drain() {
	i := &p.in
	i.resumeLoop()
	var claimed []*nativeIncoming
	i.mu.Lock()
	for _, in := range i.open { // until it is claimed, a message in open cannot be finished and reused
		if in.claim() {
			claimed = append(claimed, in)
		}
	}
	i.mu.Unlock()
	for _, in := range claimed {
		in.discardClaimed()
	}
	for {
		select {
		case in, ok := <-i.ready:
			if !ok {
				return
			}
			i.readAhead.Release(in.readAhead)
			in.tryDiscard()
		case <-i.pipe.down:
			return
		}
	}
}

// releaseUnused releases the memory that only further messages would need, since the application
// may keep a Pipe that has ended. All goroutines of the pipe must have ended.
func (i *nativeReader) releaseUnused() {
	i.stream.mu.Lock()
	i.stream.in = nil
	i.stream.mu.Unlock()
	i.mu.Lock()
	i.earlyAborts = earlyAborts{}
	i.mu.Unlock()
}
