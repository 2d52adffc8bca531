package mux

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Pollable is a connection that can be read without blocking, and polled. Streams of a session over one
// implement [transport.Poller] and [transport.Gatherer]. At a time, one goroutine calls TryRead and one
// Wait. A write deadline interrupts WriteBuffers, which counts the bytes that were written before.
type Pollable interface {
	transport.Stream
	transport.Gatherer

	// TryRead reads the bytes that have arrived, possibly 0, without blocking. Errors are those of
	// Read, except that of a deadline.
	TryRead(p []byte) (int, error)

	// Spin calls ready, which calls TryRead, until it returns true or the time to spin ends, and
	// reports whether it returned true. It may return false at once. If due is set, a reply is
	// expected soon.
	Spin(ready func() bool, due bool) bool

	// Wait blocks until there may be something to read, or Wake is called, and returns nil. It may
	// spin before, which ends when stop returns true; it then returns too. The error is that of the
	// read deadline, or ErrClosed.
	Wait(stop func() bool) error

	// Wake makes the current call of Wait return, or the next one.
	Wake()
}

// errNoData is returned by the reads of a Pollable that has no bytes.
var errNoData = errors.New("mux: no data")

// pollSource is an io.Reader that returns errNoData if the connection has no bytes.
type pollSource struct{ conn Pollable }

func (s pollSource) Read(p []byte) (int, error) {
	n, err := s.conn.TryRead(p)
	if n == 0 && err == nil {
		err = errNoData
	}
	return n, err
}

// attendAfter is the time between two checks whether a goroutine waits for the connection. At most
// two such periods pass in which none does.
const attendAfter = 10 * time.Millisecond

// watch determines which goroutine waits for a Pollable: the one that has turn. It is the reading
// goroutine of yamux until Wait of a stream is called. Then it is the goroutine in Wait,
// so that a message wakes no other one. While callers poll, none waits. If no goroutine has waited or
// polled for some time, or bytes of other streams are expected, that of yamux waits again.
type watch struct {
	conn   Pollable
	turn   chan struct{} // holds a token while a goroutine waits
	wanted chan struct{} // holds a token if the goroutine of yamux is to wait
	polled atomic.Bool   // Wait of a stream was called

	// expected is set if bytes of other streams are expected: a goroutine that stops waiting because
	// callers poll then makes the goroutine of yamux wait.
	expected atomic.Bool

	activity atomic.Uint64 // number of polls and waits
	timer    *time.Timer
	running  atomic.Bool // the timer is
	seen     uint64      // value of activity at the last check
}

func newWatch(conn Pollable) *watch {
	w := &watch{conn: conn, turn: make(chan struct{}, 1), wanted: make(chan struct{}, 1)}
	w.timer = time.AfterFunc(time.Hour, w.check)
	w.timer.Stop()
	return w
}

// expect makes the goroutine of yamux wait for the connection if no other one does. It may be called on a
// nil *watch.
func (w *watch) expect() {
	if w == nil || !w.polled.Load() {
		return
	}
	w.expected.Store(true)
	if len(w.turn) == 0 {
		w.want()
	}
}

func (w *watch) want() {
	select {
	case w.wanted <- struct{}{}:
	default:
	}
}

// leave ends the turn of the caller.
func (w *watch) leave() {
	w.activity.Add(1)
	<-w.turn
	w.startTimer()
}

func (w *watch) startTimer() {
	if w.polled.Load() && w.running.CompareAndSwap(false, true) {
		w.timer.Reset(attendAfter)
	}
}

// check is called by the timer. It runs it again if a goroutine has polled or waited since the last
// check, and not at all while a goroutine waits. Otherwise the goroutine of yamux is to wait.
func (w *watch) check() {
	if n := w.activity.Load(); n != w.seen {
		w.seen = n
		w.timer.Reset(attendAfter)
		return
	}
	w.running.Store(false)
	if len(w.turn) == 0 {
		w.want()
	}
}

// awaitPolled is awaitMessage for a Pollable.
func (l *link) awaitPolled() (header, error) {
	w := l.watch
	for {
		if w.polled.Load() {
			select {
			case h := <-l.in.forYamux:
				return h, nil
			case <-w.wanted:
			case <-l.released:
				return header{}, transport.ErrClosed
			}
		}
		select {
		case h := <-l.in.forYamux:
			w.want() // again
			return h, nil
		case w.turn <- struct{}{}:
		case <-l.released:
			return header{}, transport.ErrClosed
		}
		err := l.attend()
		w.leave()
		if len(l.in.forYamux) > 0 {
			w.want() // to go on
		}
		if err != nil {
			return header{}, err
		}
	}
}

// attend receives for all streams, and waits for more, until there is a message for yamux or, if a
// stream is polled, another goroutine polls or waits. The error is that of receive. The caller has the turn.
func (l *link) attend() error {
	w := l.watch
	for before := w.activity.Load(); ; {
		if err := l.receiveAll(); err != errNoData {
			return err
		}
		if n := w.activity.Load(); w.polled.Load() && n != before {
			if !w.expected.Swap(false) {
				return nil
			}
			before = n
		}
		if err := w.conn.Wait(l.mayReceive); err != nil {
			return l.fail(err)
		}
	}
}

// mayReceive reports whether attend can go on although the connection has no input.
func (l *link) mayReceive() bool { return len(l.in.forYamux) > 0 || l.in.unread.Load() }

// receiveAll receives until there is a message for yamux, and returns nil then, or an error of
// receive, errNoData if nothing is left.
func (l *link) receiveAll() error {
	l.in.mu.Lock()
	defer l.unlock()
	l.in.unread.Store(false) // the others wait for this goroutine
	if stalled := l.in.stalled.Swap(nil); stalled != nil {
		close(*stalled)
	}
	for len(l.in.forYamux) == 0 {
		if err := l.receive(true); err != nil {
			return err
		}
	}
	return nil
}

// fail ends the session because of err, the error of waiting, if it has not ended. It returns the
// error of receive.
func (l *link) fail(err error) error {
	l.in.mu.Lock()
	defer l.in.mu.Unlock()
	return l.end(err)
}
