package pipe

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// Where the message stream can be polled, who calls Next looks for the next
// message himself, for as long as waiting awake is worth its while. The pipe's own
// goroutine sleeps meanwhile; it reads when nobody looks. So no goroutine has to
// wake another one for a message that comes at once.

// seek returns the next message if that is there, or comes soon. What is due is
// looked for whatever comes for other pipes.
func (i *nativeInbox) seek(ctx context.Context, due bool) *nativeIncoming {
	if i.reader.poll == nil || ctx.Err() != nil || isClosed(i.pipe.down) || isClosed(i.pipe.closing) {
		return nil
	}
	select {
	case in, ok := <-i.ready:
		if !ok {
			return nil
		}
		return i.took(in)
	default:
	}
	in := i.lookOut(due)
	if in != nil {
		i.demand.Add(-1)
		i.foundOne()
	}
	return in
}

// poll is next for one who does not sleep here. It takes part in the demand, so
// that whoever reads leaves the stream to it.
func (p *nativePipe) poll(ctx context.Context) *Incoming {
	i := &p.in
	i.demand.Add(1)
	in := i.seek(ctx, true)
	if in == nil {
		i.demand.Add(-1)
		return nil
	}
	if !i.deliver(in) {
		return nil
	}
	return &in.Incoming
}

// lookOut looks for the next message. Whoever has the turn reads, and puts what is
// not his into ready before he gives it up; then he sees to it that somebody reads
// for those who came meanwhile.
func (i *nativeInbox) lookOut(due bool) *nativeIncoming {
	if !i.turn.TryLock() {
		i.hint()
		return nil
	}
	defer i.turn.Unlock()
	if len(i.ready) > 0 {
		i.hint()
		return nil
	}
	i.seeker.Store(true)
	i.reader.mu.Lock()
	defer i.reader.mu.Unlock()
	defer i.seeker.Store(false) // before anybody else can rely on this call
	i.reader.letRead()
	in := i.reader.find(due)
	if in != nil {
		i.admit(in)
	}
	return in
}

// hint has the pipe's own goroutine hear of what comes from now on, and look around if
// it is parked or about to: a call that sleeps relies on it, and who has read before
// may have let go of the stream without a word.
func (i *nativeInbox) hint() {
	i.reader.poll.Mind()
	i.reader.unpark()
}

// grace is how often who wants the next message lets others run before he takes in
// the inline bytes of the one before it: who has got that may be about to read it.
const grace = 8

// letRead lets the open message be read. The caller holds mu, which a Read that has
// begun holds for as long as bytes come.
func (r *messageReader) letRead() {
	for n := 0; n < grace && r.open != nil; n++ {
		r.mu.Unlock()
		runtime.Gosched()
		r.mu.Lock()
	}
}

// patience is how often a message that comes in bits is looked at again.
const patience = 64

// find looks for a message, see seek. The caller holds mu.
func (r *messageReader) find(due bool) *nativeIncoming {
	look := r.poll.Look
	if due {
		look = r.poll.LookDue
	}
	for range patience {
		in, err := r.read(true)
		if err == nil && in.body != nil {
			err = in.decode()
			r.err = err
		}
		if err == nil {
			return in
		}
		if err != errNothing || !look() {
			break
		}
	}
	r.mind()
	return nil
}

// mind hands the stream to the pipe's own goroutine. The caller holds mu.
func (r *messageReader) mind() {
	r.poll.Mind()
	r.unpark()
	if r.err != nil || r.src.Buffered() > 0 {
		r.poll.Wake()
	}
}

// mindAfter is half of how long what comes can go unnoticed while the application,
// which found something, does not ask for more.
const mindAfter = 20 * time.Millisecond

// minder sees to it that a stream is minded again after somebody found something
// in it. It asks now and then, so that finding costs nothing.
type minder struct {
	reader *messageReader
	timer  *time.Timer
	set    atomic.Bool   // the timer is
	finds  atomic.Uint64 // so far
	seen   uint64        // of them, by the timer
}

func (m *minder) init(r *messageReader) {
	m.reader = r
	m.timer = time.AfterFunc(time.Hour, m.ask)
	m.timer.Stop()
}

func (m *minder) stop() {
	if m.timer != nil {
		m.timer.Stop()
	}
}

// found notes that somebody found something.
func (m *minder) found() {
	m.finds.Add(1)
	if !m.set.Load() && m.set.CompareAndSwap(false, true) {
		m.timer.Reset(mindAfter)
	}
}

func (m *minder) ask() {
	if finds := m.finds.Load(); finds != m.seen || !m.reader.mu.TryLock() {
		m.seen = finds
		m.timer.Reset(mindAfter)
		return
	}
	defer m.reader.mu.Unlock()
	m.set.Store(false)
	m.reader.mind()
}

// foundOne is called by one who found something and looks no more. Others who wait
// for messages need the pipe's own goroutine.
func (i *nativeInbox) foundOne() {
	switch {
	case i.demand.Load() <= 0:
		i.minder.found()
	case i.seeker.Load(): // who leaves the stream to somebody himself
	default:
		i.mind()
	}
}

// mind has the pipe's own goroutine read what comes.
func (i *nativeInbox) mind() {
	if i.reader.poll == nil {
		return
	}
	i.reader.mu.Lock()
	defer i.reader.mu.Unlock()
	i.reader.mind()
}
