package pipe

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"
)

// pollReady returns the next message from i.ready or, if none is there, from one bounded poll of
// the stream, and nil if it gets none. It returns nil without a poll if the stream cannot be
// polled, if ctx has ended, or if the pipe is closing or has ended. If due is true, because a
// message is expected soon, it polls even while other connections of the process are active. The
// caller has added 1 to i.demand; if a message is returned, 1 has been subtracted again.
func (i *nativeReader) pollReady(ctx context.Context, due bool) *nativeIncoming {
	if i.stream.poller == nil || ctx.Err() != nil || isClosed(i.pipe.down) || isClosed(i.pipe.closing) {
		return nil
	}
	select {
	case in, ok := <-i.ready:
		if !ok {
			return nil
		}
		return i.takeReady(in)
	default:
	}
	in := i.pollNext(due)
	if in != nil {
		i.demand.Add(-1)
		i.afterPoll()
	}
	return in
}

// tryNext returns the next message if it has been received or arrives during one bounded poll. If
// it gets no message, both results are nil. It drops messages that the peer has aborted, and polls
// again after each. After the last message it returns the error with which the pipe has ended.
func (p *nativePipe) tryNext() (*Incoming, error) {
	i := &p.in
	for {
		i.demand.Add(1)
		in := i.pollReady(context.Background(), true)
		if in == nil {
			select { // the stream may not be one that can be polled, or may have ended
			case next, ok := <-i.ready:
				if !ok {
					i.demand.Add(-1)
					return nil, p.errorFor("next", "", p.endError())
				}
				in = i.takeReady(next)
			default:
				i.demand.Add(-1)
				return nil, nil
			}
		}
		if i.deliver(in) {
			return &in.Incoming, nil
		}
	}
}

// pending implements engine. For a stream that can be polled it reports true if another goroutine reads it.
func (p *nativePipe) pending() bool {
	r := &p.in.stream
	switch {
	case len(p.in.ready) > 0:
		return true
	case r.poller == nil: // the run loop always reads
		return r.arrivedInBatch.Load()
	case !r.mu.TryLock():
		return true
	}
	defer r.mu.Unlock()
	return r.in != nil || r.src.Buffered() > 0 || r.poller.Readable()
}

// pollNext polls the stream for the next message for a bounded time, numbers it and returns it. If
// due is true it polls even while other connections of the process are active. It returns nil if
// another goroutine is reading, if messages are already in i.ready, if no message arrives
// completely, or if the stream fails. The goroutine of run, which reads while no caller polls, then
// waits for data of the stream again. pollNext takes and releases readMu and the stream's mu.
func (i *nativeReader) pollNext(due bool) *nativeIncoming {
	if !i.readMu.TryLock() && !(due && i.takeOver()) {
		i.wakeLoop()
		return nil
	}
	defer i.readMu.Unlock()
	if len(i.ready) > 0 {
		i.wakeLoop()
		return nil
	}
	i.polling.Store(true)
	i.stream.mu.Lock()
	defer i.stream.mu.Unlock()
	defer i.polling.Store(false) // before both locks are released, so that afterPoll sees it
	i.stream.yieldToRead()
	in := i.stream.pollMessage(due)
	if in == nil {
		return nil
	}
	if err := i.register(in); err != nil {
		i.stream.err = err
		i.stream.resumeLoop() // to report it
		return nil
	}
	return in
}

// maxTakeOver is how often takeOver yields.
const maxTakeOver = 100

// takeOver locks readMu, which another goroutine holds, and makes that one return if it polls in Next.
// It reports whether it has locked it.
func (i *nativeReader) takeOver() bool {
	i.stream.poller.Interrupt()
	for range maxTakeOver {
		runtime.Gosched()
		if i.readMu.TryLock() {
			return true
		}
	}
	return false
}

// wakeLoop makes the goroutine of run wait for data of the stream again, even if that goroutine is
// parked or about to park. A caller that has found no message calls wakeLoop before it blocks,
// because otherwise arriving data might wake no goroutine. The stream must be one that can be
// polled.
func (i *nativeReader) wakeLoop() {
	i.stream.poller.Arm()
	i.stream.unpark()
}

// maxYields is how often a caller of Next yields before it reads the inline bytes of the open
// message itself, since the goroutine that has this message may be about to read them.
const maxYields = 8

// yieldToRead yields the processor up to maxYields times while the inline bytes of a returned
// message are still in the stream, so that Read can receive them into its own memory. The caller
// holds mu, which Read needs for that; it is released while yielding.
func (r *streamReader) yieldToRead() {
	for n := 0; n < maxYields && r.open != nil; n++ {
		r.mu.Unlock()
		runtime.Gosched()
		r.mu.Lock()
	}
}

// maxPartialPolls bounds how often a partially received message is polled.
const maxPartialPolls = 64

// pollMessage polls the stream for a message for a bounded time and returns it. The message is
// decoded; its inline bytes may still be in the stream. If due is true pollMessage polls even while
// other connections of the process are active. If no message arrives completely or the stream
// fails, it returns nil, and the goroutine of nativeReader.run waits for data again; an error is
// kept in r.err. The caller holds mu.
func (r *streamReader) pollMessage(due bool) *nativeIncoming {
	for range maxPartialPolls {
		in, err := r.read(true)
		if err == nil && in.body != nil {
			err = in.decode()
			r.err = err
		}
		if err == nil {
			return in
		}
		if err != errNoData || !r.poller.PollReadable(due) {
			break
		}
	}
	r.resumeLoop()
	return nil
}

// resumeLoop makes the goroutine of nativeReader.run wait for data of the stream again, even if
// that goroutine is parked. If data is already buffered or the stream has failed, the goroutine
// reads at once. The stream must be one that can be polled. The caller holds mu.
func (r *streamReader) resumeLoop() {
	r.poller.Arm()
	r.unpark()
	if r.err != nil || r.src.Buffered() > 0 {
		r.poller.Wake()
	}
}

// resumeAfter is the time between two checks of the resumeTimer. After the last poll the stream is
// unwatched for at most two such periods, in which nothing is read ahead.
const resumeAfter = 20 * time.Millisecond

// resumeTimer makes the run loop watch the stream again if a caller has polled a message and no
// further one is polled. It checks periodically, so that polling itself costs nothing.
type resumeTimer struct {
	stream    *streamReader
	timer     *time.Timer
	armed     atomic.Bool   // the timer is running
	polls     atomic.Uint64 // number of messages polled
	lastPolls uint64        // value of polls at the last check
}

func (m *resumeTimer) init(r *streamReader) {
	m.stream = r
	m.timer = time.AfterFunc(time.Hour, m.check)
	m.timer.Stop()
}

func (m *resumeTimer) stop() {
	if m.timer != nil {
		m.timer.Stop()
	}
}

// polled records that a caller has polled a message, and starts the timer if it is not running.
func (m *resumeTimer) polled() {
	m.polls.Add(1)
	if !m.armed.Load() && m.armed.CompareAndSwap(false, true) {
		m.timer.Reset(resumeAfter)
	}
}

// check is called by the timer. If a message has been polled since the last check, or a goroutine
// holds mu of the stream, it starts the timer again. Otherwise it leaves the timer stopped and
// makes the goroutine of nativeReader.run wait for data of the stream again.
func (m *resumeTimer) check() {
	if polls := m.polls.Load(); polls != m.lastPolls || !m.stream.mu.TryLock() {
		m.lastPolls = polls
		m.timer.Reset(resumeAfter)
		return
	}
	defer m.stream.mu.Unlock()
	m.armed.Store(false)
	m.stream.resumeLoop()
}

// afterPoll is called by a goroutine that has polled a message, or the inline bytes of one, and has
// stopped polling. It makes the goroutine of run wait for data of the stream again: at once if
// other callers wait for messages and none of them polls, and later, by the resumeTimer, if no
// caller waits. If callers wait and one of them polls, afterPoll does nothing, because that caller
// does the same when it stops polling. The caller holds no lock of the reader.
func (i *nativeReader) afterPoll() {
	switch {
	case i.demand.Load() <= 0:
		i.resumeTimer.polled()
	case i.polling.Load(): // that caller calls afterPoll too
	default:
		i.resumeLoop()
	}
}

// resumeLoop makes the goroutine of run wait for data of the stream again, and read if there is
// data. It does nothing if the stream cannot be polled. It locks streamReader.mu.
func (i *nativeReader) resumeLoop() {
	if i.stream.poller == nil {
		return
	}
	i.stream.mu.Lock()
	defer i.stream.mu.Unlock()
	i.stream.resumeLoop()
}

// errMessageOpen is returned to the run loop while it must leave the open message to Read.
var errMessageOpen = errors.New("a message is open")

// read reads the next message for receive. While the inline bytes of an earlier message are left in
// the stream for Read, it returns errMessageOpen. It reads those bytes itself once a Read waits for
// them or a caller of Next waits for a message, once the message is overdue, once the stream has
// failed, or once an end is closing. If no message is complete, it returns errNoData if the stream
// can be polled, no message is overdue and no end is closing; otherwise it blocks. Any error except
// these two has ended the stream. The caller holds readMu; read locks the stream's mu.
func (i *nativeReader) read() (*nativeIncoming, error) {
	r := &i.stream
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.parked.Load() && !r.overdue
	if left && r.open != nil && r.open.inlineDone == nil && r.err == nil && i.demand.Load() <= 0 && !i.isEnding() {
		r.openedAtPark = r.opened
		return nil, errMessageOpen
	}
	r.parked.Store(false)
	in, err := r.read(r.poller != nil && !r.overdue && !i.isEnding())
	r.parked.Store(err == nil && in.body == nil)
	r.openedAtPark = r.opened
	return in, err
}

// isEnding reports whether this end is closing or the peer has sent a close frame. All messages
// must then be read, whether a caller waits or not.
func (i *nativeReader) isEnding() bool {
	closed, _ := i.pipe.control.peerClose()
	return closed || i.pipe.isClosing()
}

// maxParked bounds how long the run loop leaves an open message to Read. After that the message is
// overdue: the run loop reads the inline bytes into memory of the pipe, because the peer may be
// blocked on a full stream. It returns no message early until it has read all data.
const maxParked = 20 * time.Millisecond

// park blocks the goroutine of run until unpark is called, until the pipe ends, or for maxParked.
// In the last case it marks the open message, whose inline bytes are left to Read, as overdue if
// that message was open already when the goroutine last read.
func (i *nativeReader) park() {
	r := &i.stream
	if i.parkTimer == nil {
		i.parkTimer = time.NewTimer(maxParked)
	} else {
		i.parkTimer.Reset(maxParked)
	}
	defer i.parkTimer.Stop()
	select {
	case <-r.resume:
	case <-i.parkTimer.C:
		r.mu.Lock()
		r.overdue = r.open != nil && r.opened == r.openedAtPark // still the same message
		r.mu.Unlock()
	case <-i.pipe.down:
		r.parked.Store(false)
	}
}

// unpark wakes the goroutine of nativeReader.run if it is parked or about to park, so that it
// checks whether it must read. It does not block.
func (r *streamReader) unpark() {
	if !r.parked.Load() {
		return
	}
	select {
	case r.resume <- struct{}{}:
	default:
	}
}
