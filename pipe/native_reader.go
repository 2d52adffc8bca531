package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

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
	parkTimer   *time.Timer          // of the run loop, see park
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

// attach gives the reader the stream s, from which it reads all messages. It is called once, after
// init and before any other method.
func (i *nativeReader) attach(s transport.Stream) {
	i.stream.init(i.pipe, s)
	if i.stream.poller != nil {
		i.resumeTimer.init(&i.stream)
	}
}

// next implements engine: it returns the next message that the peer has not aborted. It first polls
// for a message for a bounded time and then blocks. If ctx ends first, the error wraps the cause of
// ctx; if this end closes the pipe, it wraps ErrClosed; after the last message, the error with
// which the pipe has ended.
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

// takeReady returns in, which the caller has received from i.ready. If further callers wait for
// messages, it first makes the goroutine of run read on, because the inline bytes of in may precede
// their messages in the stream.
func (i *nativeReader) takeReady(in *nativeIncoming) *nativeIncoming {
	if i.demand.Load() > 0 {
		i.resumeLoop()
	}
	return in
}

// deliver prepares in for its return by Next or TryNext, and reports whether they may return it. It
// releases the message's share of the read-ahead budget. If the peer has aborted the message,
// deliver ends it, counts it as read and reports false; the caller then drops in.
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

// run receives messages until the message stream ends, and then closes i.ready. It runs on a
// goroutine of the pipe.
//
// If the peer has closed its end in an orderly way, run then waits until this end's writes are
// complete and ends the message stream of this end too. Once the session has ended, no Read of
// parts that are not inline may begin. Reads under way have CloseTimeout to end, because the peer
// has sent all their bytes; if they do not, the pipe fails.
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

// receiveAll receives messages until the stream or the pipe fails, and returns the error, which is
// io.EOF for an orderly end. While there is no data it blocks in Poller.Wait, and while the inline
// bytes of a message are left to Read it blocks in park.
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

// receive reads messages and enqueues them, until it returns errNoData, errMessageOpen or the error
// of the stream or pipe. It waits for the read-ahead budget before it decodes a message, because
// the decoded message takes a multiple of its bytes. It returns errMessageOpen while the inline
// bytes of a message are left to Read, also directly after it has enqueued such a message, whose
// descriptor has been decoded already. It locks readMu.
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
		if err == nil {
			err = i.register(in)
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

// nativeError returns err, an error about a frame of the peer, as one that matches ErrChecksum if
// the checksum is wrong, ErrProtocol and ErrLimit if a limit is exceeded, and otherwise
// ErrProtocol. It returns nil for nil.
func nativeError(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrChecksum) {
		return err
	}
	if errors.Is(err, native.ErrLimit) {
		return protocolError("%w: %w", ErrLimit, err)
	}
	return protocolError("%w", err)
}

// enqueue passes in on: to a goroutine that receives from the channel of NextCh, if
// there is one, in is not aborted and no earlier message is queued, and otherwise to i.ready. In
// the first case it releases the message's share of the read-ahead budget; in the second it blocks
// while i.ready is full. If the pipe goes down first, it returns the error of the pipe. The caller
// holds readMu.
func (i *nativeReader) enqueue(in *nativeIncoming) error {
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

// register numbers in, in the order of the calls. If in has parts that are not inline, register
// enters it in i.open, so that the peer's ABORT frame finds it; if the peer has aborted the message
// already, register marks it as aborted instead. It announces eager parts to the mover; the error
// matches ErrProtocol if they must not come. The caller holds readMu.
func (i *nativeReader) register(in *nativeIncoming) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	in.number = i.received
	i.received++
	aborted := i.earlyAborts.take(in.number)
	err := in.expectEager()
	switch {
	case in.large == 0: // it is complete, also if the sender aborted it
	case aborted != nil:
		in.abort(aborted)
	default:
		i.open[in.number] = in
	}
	return err
}

// handleAbort acts on the peer's ABORT frame for the message with this number: it aborts the
// message's transfers, or keeps the abort for a message that has not arrived. reason is the text of
// the frame, which the message's error then has. A message that is finished or has no transfers is
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

// finish handles err, with which the message stream has ended. If err is io.EOF, it waits for the
// peer's close frame, for twice closeFrameTimeout at most. If the frame has come, finish sets
// p.end, the error that Next returns after the last message, closes the channel peerEnded, and does
// not fail the pipe, so that received messages can be read. In all other cases it fails the pipe:
// after another error messages may be missing, even if there is a close frame, because a peer that
// closes ends its message stream before its session.
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

// awaitReads blocks until no Read of parts that are not inline is under way, or the pipe is down,
// and then returns nil. If ctx ends first the error matches ErrCloseTimeout.
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

// countReads adds n, which may be negative or 0, to i.reads, the number of Reads under way of parts
// that are not inline. If the sum is 0 it wakes the callers of awaitReads. The caller holds mu.
func (i *nativeReader) countReads(n int) {
	i.reads += n
	if i.reads == 0 && i.readsDone != nil {
		close(i.readsDone)
		i.readsDone = nil
	}
}

// drain discards the messages that are queued or arrive while the pipe closes, and those that Next
// has returned and that have parts that are not inline, so that the peer's writes complete. It
// leaves out messages that a Read or Discard has claimed. It returns when the peer has ended its
// messages or the pipe is down.
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

// releaseUnused drops the partially received message and the stored aborts, which are of no use
// without further messages, since the application may keep a Pipe that has ended. Messages that
// were received stay usable. All goroutines of the pipe must have ended.
func (i *nativeReader) releaseUnused() {
	i.stream.mu.Lock()
	i.stream.in = nil
	i.stream.mu.Unlock()
	i.mu.Lock()
	i.earlyAborts = earlyAborts{}
	i.mu.Unlock()
}
