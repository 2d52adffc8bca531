package pipe

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"
)

// pollReady returns the next message if it has been received or arrives during one bounded poll, and
// otherwise nil. It also returns nil if the stream cannot be polled, or if ctx or the pipe has ended.
// due means that a message is expected soon: it is polled for even while other connections of the
// process are active. The caller has added 1 to demand. If a message is returned, this has been
// subtracted again.
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

// tryNext returns the next message if it has been received or arrives during one bounded poll, and
// otherwise nil without an error. It drops messages that the peer has aborted. After the last message
// it returns the error of Next.
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

// pollNext polls for the next message, numbers it and returns it. It returns nil if another goroutine
// is reading, if messages are already queued, or if none arrives. It then makes the run loop, which
// reads while no caller polls, watch the stream. due has the meaning that it has for pollReady.
func (i *nativeReader) pollNext(due bool) *nativeIncoming {
	if !i.readMu.TryLock() {
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
	if in != nil {
		i.register(in)
	}
	return in
}

// wakeLoop makes the run loop watch the stream, also if it is parked or about to park. A caller
// that is going to block relies on it: the goroutine that read last may have left the stream
// unwatched.
func (i *nativeReader) wakeLoop() {
	i.stream.poller.Arm()
	i.stream.unpark()
}

// maxYields is how often a caller of Next yields before it reads the inline bytes of the open
// message itself, since the goroutine that has this message may be about to read them.
const maxYields = 8

// yieldToRead yields up to maxYields times while a message is open, so that a Read can receive its
// inline bytes. The caller holds mu, which Read needs for that and which is released while
// yielding.
func (r *streamReader) yieldToRead() {
	for n := 0; n < maxYields && r.open != nil; n++ {
		r.mu.Unlock()
		runtime.Gosched()
		r.mu.Lock()
	}
}

// maxPartialPolls bounds how often a partially received message is polled.
const maxPartialPolls = 64

// pollMessage polls the stream for a message for a bounded time and returns it. pollReady explains due.
// If no message arrives completely or the stream fails, it resumes the run loop and returns nil; an
// error of the stream is kept in r.err. The caller holds mu.
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

// resumeLoop makes the run loop watch the stream, also if it is parked. The run loop reads at once if
// data is buffered or the stream has failed. The stream must be one that can be polled. The caller
// holds mu.
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

// polled counts a polled message and arms the timer if it is not running.
func (m *resumeTimer) polled() {
	m.polls.Add(1)
	if !m.armed.Load() && m.armed.CompareAndSwap(false, true) {
		m.timer.Reset(resumeAfter)
	}
}

// check resumes the run loop and disarms the timer if no message has been polled since the last
// check and no goroutine is polling. Otherwise it checks again after resumeAfter. The timer calls
// it.
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

// afterPoll is called after a goroutine has polled a message and stopped polling. It makes sure that
// the stream is watched again. If no caller waits for messages, the resumeTimer resumes the run loop
// later. If callers wait and none polls, afterPoll resumes it at once. The caller holds no lock of the
// reader.
func (i *nativeReader) afterPoll() {
	switch {
	case i.demand.Load() <= 0:
		i.resumeTimer.polled()
	case i.polling.Load(): // that caller calls afterPoll too
	default:
		i.resumeLoop()
	}
}

// resumeLoop makes the run loop watch the stream, and read if there is data. It does nothing if the
// stream cannot be polled. It locks streamReader.mu.
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

// read reads the next message for the run loop. It returns errMessageOpen while the inline bytes of an
// open message are left to Read. That ends when a Read waits for them or a caller of Next waits for a
// message, when the message is overdue, when the stream fails, or when an end is closing. read returns
// errNoData if no message is complete, and otherwise the error of the stream. The caller holds readMu.
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

// park blocks the run loop until unpark, the end of the pipe, or for maxParked. In the last case it
// marks the open message as overdue if it is still the same one.
func (i *nativeReader) park() {
	r := &i.stream
	t := time.NewTimer(maxParked)
	defer t.Stop()
	select {
	case <-r.resume:
	case <-t.C:
		r.mu.Lock()
		r.overdue = r.open != nil && r.opened == r.openedAtPark // still the same message
		r.mu.Unlock()
	case <-i.pipe.down:
		r.parked.Store(false)
	}
}

// unpark makes the run loop check whether it must read, if it is parked or about to park. It does
// not block.
func (r *streamReader) unpark() {
	if !r.parked.Load() {
		return
	}
	select {
	case r.resume <- struct{}{}:
	default:
	}
}
