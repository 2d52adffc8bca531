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

// nativeInbox is the reading half of a pipe. Its run loop reads messages, with
// all that travels inside them, ahead of the application as far as the limits
// go; the window of the stream then stops the sender.
type nativeInbox struct {
	pipe   *nativePipe
	reader messageReader
	minder minder
	turn   sync.Mutex           // of who reads messages and hands them out
	demand atomic.Int32         // calls of next, less what is in ready or was taken from it for them
	seeker atomic.Bool          // one of them has the turn
	ready  chan *nativeIncoming // what Next returns; closed at the end
	held   *budget.Budget       // bytes taken in ahead of the application
	ended  chan struct{}        // closed when the peer has said that no more will come

	recvMu sync.Mutex // one Recv at a time

	mu       sync.Mutex
	received uint64                     // messages so far
	reads    int                        // large ones that are being read
	over     bool                       // no other can be
	quiet    chan struct{}              // made by awaitReads, closed when reads is 0
	open     map[uint64]*nativeIncoming // messages of which parts wait for memory
	early    earlyAborts
	end      error // why there are no more messages

	traffic traffic
	saved   savings
}

func (i *nativeInbox) init(p *nativePipe) {
	i.pipe = p
	i.ready = make(chan *nativeIncoming, p.context.limits.ReadAheadMessages)
	i.held = budget.New(p.context.limits.ReadAheadBytes)
	i.ended = make(chan struct{})
	i.open = map[uint64]*nativeIncoming{}
	i.early.account = p.account
}

// attach gives the inbox its stream.
func (i *nativeInbox) attach(s transport.Stream) {
	i.reader.init(i.pipe, s)
	if i.reader.poll != nil {
		i.minder.init(&i.reader)
	}
}

func (p *nativePipe) next(ctx context.Context) (*Incoming, error) {
	i := &p.in
	for {
		i.demand.Add(1)
		in, err := i.nextReady(ctx)
		if err != nil {
			i.demand.Add(-1)
			return nil, err
		}
		if i.deliver(in) {
			return &in.Incoming, nil
		}
	}
}

func (i *nativeInbox) nextReady(ctx context.Context) (*nativeIncoming, error) {
	if in := i.seek(ctx, false); in != nil {
		return in, nil
	}
	p := i.pipe
	select {
	case in, ok := <-i.ready:
		if !ok {
			return nil, p.errorFor("next", "", i.endError())
		}
		return i.took(in), nil
	case <-p.closing:
		return nil, p.errorFor("next", "", ErrClosed)
	case <-ctx.Done():
		return nil, p.errorFor("next", "", context.Cause(ctx))
	}
}

// took is the message that was taken from ready. If others wait for one somebody has
// to see to the stream, in which the bytes of this one may come first.
func (i *nativeInbox) took(in *nativeIncoming) *nativeIncoming {
	if i.demand.Load() > 0 {
		i.mind()
	}
	return in
}

// deliver takes a message out of the read-ahead. It reports false for one that
// the peer has given up meanwhile.
func (i *nativeInbox) deliver(in *nativeIncoming) bool {
	if in.held > 0 {
		i.held.Release(in.held)
	}
	aborted := i.isAborted(in)
	if aborted {
		in.drop()
	}
	return !aborted
}

func (i *nativeInbox) isAborted(in *nativeIncoming) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return in.aborted != nil
}

// run reads messages until the stream ends.
func (i *nativeInbox) run() {
	i.finish(i.receiveAll())
	close(i.ready)
	if i.hasEnded() {
		i.pipe.answerClose()
		i.lastCall()
	}
}

// lastCall gives reads under way some time once a peer that closed has ended
// the session: all they still need is on its way. No other can begin.
func (i *nativeInbox) lastCall() {
	p := i.pipe
	select {
	case <-p.session.Done():
	case <-p.down:
		return
	}
	i.mu.Lock()
	i.over = true
	i.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), p.context.opts.CloseTimeout)
	defer cancel()
	if i.awaitReads(ctx) != nil {
		p.fail(p.errorFor("read", "bulk", fmt.Errorf("%w: it closed, and parts of its messages are missing", ErrPeerLost)))
	}
}

func (i *nativeInbox) receiveAll() error {
	for {
		switch err := i.receive(); err {
		case errNothing:
			i.reader.overdue = false
			i.reader.poll.Await()
		case errOpen:
			i.park()
		default:
			return err
		}
	}
}

// receive reads messages until it must wait for more. They are taken apart once the
// application has caught up far enough: what was read takes little more than its
// bytes, what was taken apart a multiple of them.
func (i *nativeInbox) receive() error {
	i.turn.Lock()
	defer i.turn.Unlock()
	for {
		in, err := i.read()
		if err != nil {
			return err
		}
		in.held = in.cost()
		if !i.held.Acquire(context.Background(), i.pipe.down, in.held) {
			return i.pipe.Err()
		}
		if in.body != nil {
			err = in.decode()
		}
		if err != nil {
			return i.reader.fail(err)
		}
		early := in.whole > 0
		if err := i.offer(in); err != nil {
			return err
		}
		if early {
			return errOpen
		}
	}
}

// nativeError puts an error about a frame of the peer into one of this
// package's.
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

// offer numbers a message and puts it where Next finds it.
func (i *nativeInbox) offer(in *nativeIncoming) error {
	i.admit(in)
	if held := in.held; len(i.ready) == 0 && !i.isAborted(in) && i.pipe.handOver(&in.Incoming) {
		if held > 0 {
			i.held.Release(held)
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

// admit makes the message known, so that the peer can give it up.
func (i *nativeInbox) admit(in *nativeIncoming) {
	i.mu.Lock()
	defer i.mu.Unlock()
	in.number = i.received
	i.received++
	aborted := i.early.take(in.number)
	switch {
	case in.large == 0: // all of it is here, whatever became of it there
	case aborted != nil:
		in.aborted = aborted
	default:
		i.open[in.number] = in
	}
}

// abort takes the peer's word that it gives a message up.
func (i *nativeInbox) abort(number uint64, reason string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if in := i.open[number]; in != nil {
		in.abort(abortedError(reason))
		return nil
	}
	if number < i.received {
		return nil // it was through, or given up here
	}
	return i.early.add(number, reason)
}

// finish notes the end of the message stream: an orderly one leaves the pipe
// up, so that what has arrived can be read.
func (i *nativeInbox) finish(err error) {
	p := i.pipe
	if err != io.EOF { // not even one that wraps it, for the end of the session
		i.breakOff(err)
		return
	}
	p.awaitSession()
	parted, reason := p.control.lastWord()
	if !parted {
		err = p.explain(err) // which waits once more for a peer that is slow to say it
		parted, reason = p.control.lastWord()
	}
	if !parted {
		p.fail(p.errorFor("connection", "message", err))
		return
	}
	end := p.errorFor("next", "message", peerClosed(reason))
	i.mu.Lock()
	i.end = end
	close(i.ended)
	i.mu.Unlock()
}

// breakOff takes the pipe down because the message stream ended without an end.
// A goodbye is no excuse: messages may be missing. The end of the messages of a peer that
// closes leaves before that of its session, also where both ends close at once.
func (i *nativeInbox) breakOff(err error) {
	p := i.pipe
	why := p.explain(err)
	if parted, reason := p.control.lastWord(); parted && reason == "" && !errors.Is(why, ErrProtocol) {
		why = fmt.Errorf("%w: it said goodbye, and its messages broke off: %w", ErrPeerLost, err)
	}
	p.fail(p.errorFor("connection", "message", why))
}

// awaitReads waits for the large messages that are being read while the pipe
// closes: the goodbye would end them.
func (i *nativeInbox) awaitReads(ctx context.Context) error {
	i.mu.Lock()
	i.quiet = cmp.Or(i.quiet, make(chan struct{}))
	quiet := i.quiet
	i.countReads(0)
	i.mu.Unlock()
	if !inTime(ctx, quiet, i.pipe.down) {
		return fmt.Errorf("%w: messages are still being read", ErrCloseTimeout)
	}
	return nil
}

// countReads adds n, under mu.
func (i *nativeInbox) countReads(n int) {
	i.reads += n
	if i.reads == 0 && i.quiet != nil {
		close(i.quiet)
		i.quiet = nil
	}
}

func (i *nativeInbox) hasEnded() bool { return isClosed(i.ended) }

// endError is why there are no more messages.
func (i *nativeInbox) endError() error {
	i.mu.Lock()
	end := i.end
	i.mu.Unlock()
	if end != nil {
		return end
	}
	return i.pipe.Err()
}

// drain discards what comes while the pipe is closing, so that the peer's
// writes end well.
func (i *nativeInbox) drain() {
	i.mind() // the peer may need room to end
	for _, in := range i.claimOpen() {
		in.letGo()
	}
	for {
		select {
		case in, ok := <-i.ready:
			if !ok {
				return
			}
			i.held.Release(in.held)
			in.forgo()
		case <-i.pipe.down:
			return
		}
	}
}

// forget releases what only messages to come would need: the application may keep a pipe
// that is down. No message comes any more.
func (i *nativeInbox) forget() {
	i.reader.mu.Lock()
	i.reader.in = nil
	i.reader.mu.Unlock()
	i.mu.Lock()
	i.early = earlyAborts{}
	i.mu.Unlock()
}

// claimOpen claims the messages that nobody has claimed and of which parts wait
// for memory. Under mu, for a message that is open then is neither through nor
// released.
func (i *nativeInbox) claimOpen() []*nativeIncoming {
	i.mu.Lock()
	defer i.mu.Unlock()
	var claimed []*nativeIncoming
	for _, in := range i.open {
		if in.claim() {
			claimed = append(claimed, in)
		}
	}
	return claimed
}
