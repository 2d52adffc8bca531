package agent

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// A function that has been quick for some calls runs on the read loop of the connection, although
// nobody has declared that it is short: to start a goroutine that reads meanwhile would take longer
// than the function. If it takes long for once, or waits, another goroutine reads from then on.

const (
	// quickTask bounds the duration of a quick run.
	quickTask = 200 * time.Microsecond

	// quickPace is the pace from which on a function is quick, maxPace the largest one.
	quickPace, maxPace = 8, 16

	// watchPeriod is how often a watch looks at the quick run in progress. Twice this time bounds how
	// long messages wait for it.
	watchPeriod = time.Millisecond
)

// pace is one higher for each quick run of a function, and quickPace lower for each other run.
type pace struct{ atomic.Int32 }

// measure changes the pace after a run that began at that time.
func (p *pace) measure(begun time.Time) {
	change := int32(1)
	if time.Since(begun) > quickTask {
		change = -quickPace
	}
	p.Store(min(max(p.Load()+change, 0), maxPace))
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
// further message is there, which could be for another processor.
func (l *leader) isQuick(r *Request) bool {
	return !l.yielded && r.message == nil && l.conn.agent.paces.of(r).Load() >= quickPace && !l.conn.pipe.Pending()
}

// runQuick runs r on the read loop that l leads. It sets l.passed if another goroutine reads in its place
// since.
func (l *leader) runQuick(r *Request) {
	l.run = l.conn.quick.begin()
	defer func() { l.passed, l.run = !l.conn.quick.take(l.run), 0 }()
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
		go w.conn.readLoop(&leader{conn: w.conn})
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
