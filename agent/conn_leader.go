package agent

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// leader is the state of a goroutine that reads the messages of a connection for all
// goroutines that use it: the read loop of the connection, or a caller or the receiver of a
// stream that reads while it waits for its own message. Short handlers and interceptors run on
// the leader. Before they wait, perhaps for another message of the same connection, the leader
// yields: from then on another goroutine reads.
type leader struct {
	lock     *sync.Mutex // held by a caller that leads, until it yields; nil for the read loop
	conn     *conn       // of the read loop, which starts another one when it yields
	yielded  bool
	detached *Request // run by the read loop after it has promoted another goroutine, see detach
	handover handover

	quick  bool   // the read loop runs detached without a promotion
	run    uint64 // number of the quick run in progress, 0 if there is none
	passed bool   // after a quick run: another goroutine reads
}

// yield lets another goroutine read the messages of the connection, before the calling goroutine
// waits: a caller that leads unlocks its lock, the read loop starts another read loop. yield does
// nothing if l is nil or has yielded before.
func (l *leader) yield() {
	switch {
	case l == nil || l.yielded:
		return
	case l.lock != nil:
		l.lock.Unlock()
	case l.run == 0 || l.conn.quick.take(l.run):
		l.conn.startLoop()
	}
	l.yielded = true
}

// finish ends the reading of a caller that leads: it unlocks the caller's lock unless the leader
// has yielded. It must be called once, and not for the read loop.
func (l *leader) finish() {
	if !l.yielded {
		l.lock.Unlock()
	}
}

// detach starts the request r, which may take long, in such a way that the leader can continue to
// read. If l leads the read loop, detach records r in l.detached: the loop then promotes another
// goroutine to read, unless l has yielded, and runs r itself, so that only the new reader may have
// to wait until a thread wakes up. If the function of r has been quick and no further message is
// there, the loop runs r without a promotion. If l is nil or that of a caller, or promotions are
// paused, detach runs r on a new goroutine. detach itself does not block.
func (l *leader) detach(r *Request) {
	switch {
	case l == nil || l.lock != nil:
		go r.runDetached()
	case l.isQuick(r):
		l.detached, l.quick = r, true
	case !l.yielded && !l.handover.takePromotion():
		go r.runDetached()
	default:
		l.detached = r
	}
}

// promote clears l.detached and, unless l has yielded, starts another goroutine that continues the
// read loop with l if it is the first to take the turn. The calling goroutine must not use l any more
// before its takeTurn has returned true.
func (l *leader) promote() (turn uint64) {
	l.detached = nil
	turn = l.handover.turn.Load()
	if !l.yielded {
		l.handover.promoted = time.Now()
		go func() {
			if l.takeTurn(turn) {
				l.conn.readLoop(l)
			}
		}()
	}
	return turn
}

// takeTurn reports whether the calling goroutine is the first to take the turn of a promotion, and
// continues the read loop.
func (l *leader) takeTurn(turn uint64) bool { return l.handover.turn.CompareAndSwap(turn, turn+1) }

// runDetached continues a detached request on this goroutine, and may block. If the message of the
// request has not been read, it reads and opens the request as a large one. Otherwise it runs the
// task of the request in the handler slot that the request already has.
func (r *Request) runDetached() {
	if r.message != nil {
		r.conn.openLarge(r)
	} else {
		r.conn.agent.slots.run(r)
	}
}

const (
	// slowPromotion is the delay after which a promoted goroutine counts as late: all
	// processors were busy.
	slowPromotion = time.Millisecond

	// promotionPause is the number of requests for which the read loop then keeps reading:
	// a handler that computes would otherwise hold the processor that the reader needs.
	promotionPause = 64
)

// handover measures how long a promoted goroutine takes to start, and pauses promotions
// where that is too long.
type handover struct {
	promoted time.Time     // when the goroutine was promoted; zero once it has started
	paused   int           // requests for which no goroutine is promoted
	turn     atomic.Uint64 // number of promotions of which a goroutine has taken the turn
}

// observe pauses promotions for promotionPause requests if the goroutine of the read loop was
// promoted and has started late, or not at all for a long time. Each read loop calls it when it
// starts, and when it goes on in place of a promoted goroutine.
func (h *handover) observe() {
	if !h.promoted.IsZero() && time.Since(h.promoted) > slowPromotion {
		h.paused = promotionPause
	}
	h.promoted = time.Time{}
}

// takePromotion reports whether another goroutine may be promoted because of a request. It returns
// false while promotions are paused; each such call counts one request of the pause.
func (h *handover) takePromotion() bool {
	if h.paused > 0 {
		h.paused--
		return false
	}
	return true
}

// readerState counts the messages that goroutines are handling for a connection. While there
// are any, Close must not wait for the connection's read loop: a function of the application
// that handles one of them may have called Close.
type readerState struct {
	dispatching atomic.Int32 // messages that are being handled
	released    atomic.Bool  // Close does not wait for the read loop any more
}

// releaseReader makes Close no longer wait for the read loop of the connection. It is called when
// the loop ends, or earlier by Close itself. Only the first call has an effect.
func (c *conn) releaseReader() {
	if !c.reader.released.Swap(true) {
		c.agent.work.Done()
	}
}

// maxPolls bounds the messages that a goroutine reads before it checks its context.
const maxPolls = 64

// poll reads messages without blocking, as the leader l, until it has received from done, and then
// returns true. It returns false as soon as no message is there, after maxPolls messages, if a
// handler made it yield, or if another goroutine polls. It saves a switch to the calling goroutine,
// which reads the message that it waits for itself.
func (c *conn) poll(l *leader, done <-chan struct{}) bool {
	if !c.pollLock.TryLock() {
		return false
	}
	*l = leader{lock: &c.pollLock}
	defer l.finish()
	for range maxPolls {
		in, _ := c.pipe.TryNext() // the read loop gets the error too
		if in == nil {
			return false
		}
		c.dispatch(in, l)
		select {
		case <-done:
			return true
		default:
		}
		if l.yielded {
			return false
		}
	}
	return false
}

// ReadUntil blocks until it has received from done or ctx has ended. While it waits it may handle messages
// of the worker to on this goroutine. It is for extensions: a caller that expects messages of that worker
// receives them without a switch of goroutines.
func (a *Agent) ReadUntil(ctx context.Context, to To, done <-chan struct{}) {
	if p := a.peers.find(to); p != nil {
		if c := p.conn.Load(); c != nil {
			c.attend(ctx, &leader{}, done)
			return
		}
	}
	defer beginWait(ctx)()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// attend blocks until it has received from done or ctx has ended. Unless another goroutine reads the messages
// of the connection, it reads them meanwhile, as the leader l.
func (c *conn) attend(ctx context.Context, l *leader, done <-chan struct{}) {
	if r := requestOf(ctx); r != nil {
		r.slot.yieldLeader()
	}
	select {
	case <-done:
		return
	default:
	}
	if c.poll(l, done) {
		return
	}
	defer beginWait(ctx)()
	_ = c.block(ctx, l, done, nil) // the caller checks both
}

// errExpired is the error of block after its timer has fired.
var errExpired = errors.New("expired")

// block waits until it has received from done, and then returns nil. If ctx ends first, it returns
// the cause of ctx. If it can receive from expired, the channel of a timer, first, it returns
// errExpired. Unless another waiting goroutine already does so, block reads the messages of the
// connection while it waits, as the leader l, so that the message that done reports needs no switch
// from another goroutine.
func (c *conn) block(ctx context.Context, l *leader, done <-chan struct{}, expired <-chan time.Time) error {
	var next <-chan *pipe.Incoming // nil for a follower
	var down <-chan struct{}
	if c.waitLock.TryLock() {
		*l = leader{lock: &c.waitLock}
		defer l.finish()
		next, down = c.pipe.NextCh(), c.down
	}
	for {
		select {
		case in := <-next:
			c.dispatch(in, l)
			if l.yielded {
				next, down = nil, nil
			}
		case <-down: // the read loop ends all calls and streams once no other goroutine leads
			l.yield()
			next, down = nil, nil
		case <-done:
			return nil
		case <-ctx.Done():
			return ctxerr.Cause(ctx)
		case <-expired:
			return errExpired
		}
	}
}

// A function that has been quick for some calls runs on the read loop of the connection, although it
// is not declared to be short: to start a goroutine that reads meanwhile would take longer
// than the function. If it takes long for once, or waits, another goroutine reads from then on.

const (
	// maxQuickRun bounds the duration of a quick run.
	maxQuickRun = 200 * time.Microsecond

	// minQuickRuns is the number of quick runs in a row from which on a function is quick.
	minQuickRuns = 8

	// watchPeriod is how often a quickWatch checks the run in progress. If it is slow, messages wait up
	// to two periods, longer while the runtime delays timers.
	watchPeriod = time.Millisecond
)

// pace is the number of runs of a function in a row that took at most maxQuickRun, up to minQuickRuns.
type pace struct{ atomic.Int32 }

// measure changes the pace after a run that began at that time.
func (p *pace) measure(begun time.Time) {
	if time.Since(begun) > maxQuickRun {
		p.Store(0)
	} else if n := p.Load(); n < minQuickRuns {
		p.Store(n + 1)
	}
}

// paces are those of the functions that a worker serves. Functions may share one: the callers choose
// the names, so that there is no limit to their number.
type paces [256]pace

var paceSeed = maphash.MakeSeed()

// of returns the pace of the function of r.
func (p *paces) of(r *Request) *pace {
	h := maphash.String(paceSeed, r.handler.typ) ^ maphash.String(paceSeed, r.handler.name)
	return &p[h%uint64(len(p))]
}

// isQuick reports whether the read loop that l leads runs r itself: its function has been quick, and no
// further message is there, which could be for another processor. A stream waits for its own messages.
func (l *leader) isQuick(r *Request) bool {
	return !l.yielded && r.message == nil && r.stream == nil && l.conn.agent.paces.of(r).Load() >= minQuickRuns && !l.conn.pipe.Pending()
}

// runQuick runs r on the read loop that l leads. It sets l.passed if another goroutine reads in its place
// since.
func (l *leader) runQuick(r *Request) {
	l.conn.reader.dispatching.Add(1)
	l.run = l.conn.quick.begin()
	defer func() {
		l.passed, l.run = !l.conn.quick.take(l.run), 0
		l.conn.reader.dispatching.Add(-1)
	}()
	l.conn.agent.slots.runOne(r, l)
}

// quickWatch lets another goroutine read the messages of a connection if a quick run takes long.
type quickWatch struct {
	conn    *conn
	current atomic.Uint64 // number of the quick run in progress; 0 for none, or if another goroutine reads in its place
	begun   atomic.Uint64 // quick runs so far
	armed   atomic.Bool   // the timer runs
	timer   *time.Timer
	seen    uint64 // value of begun at the last check
}

func (w *quickWatch) init(c *conn) {
	w.conn = c
	w.timer = time.AfterFunc(time.Hour, w.check)
	w.timer.Stop()
}

// begin begins a quick run, and returns its number.
func (w *quickWatch) begin() uint64 {
	n := w.begun.Add(1)
	w.current.Store(n)
	w.arm()
	return n
}

func (w *quickWatch) arm() {
	if !w.armed.Load() && w.armed.CompareAndSwap(false, true) {
		w.timer.Reset(watchPeriod)
	}
}

// take reports whether the caller is the first to take the place of the quick run with that number, as
// the one that reads.
func (w *quickWatch) take(run uint64) bool { return w.current.CompareAndSwap(run, 0) }

// check is called by the timer. If the quick run in progress was in progress at the last check, it lets
// another goroutine read. Without runs since the last check it leaves the timer stopped.
func (w *quickWatch) check() {
	run, begun := w.current.Load(), w.begun.Load()
	if run != 0 && run == w.seen && w.take(run) {
		w.conn.startLoop()
		run = 0
	}
	if run != 0 || begun != w.seen {
		w.seen = begun
		w.timer.Reset(watchPeriod)
		return
	}
	w.armed.Store(false)
	if w.begun.Load() != begun {
		w.arm()
	}
}
