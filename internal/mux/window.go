package mux

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// growTrips is how many round trips may have passed since the last grant of a
// stream whose window grows: one that takes longer does not wait for its peer.
const growTrips = 4

// window is what the peer may have on its way to a stream, or unread at it.
// Every byte of it is still to be sent, or unread, or read and not yet granted
// again; so a reader that goes on always comes to the point where it grants.
type window struct {
	stream  uint32
	size    uint32
	open    uint32    // what the peer may still send
	read    uint32    // since the last grant
	granted time.Time // the last time
	due     uint32    // granted, and not yet said to the peer
	over    bool      // nothing is granted any more

	segments fifo.Queue[uint32] // bytes of each that yamux holds, in a session with a quota
	begun    uint32             // bytes of the first that were read
}

// reserved is the part of the size that was taken from the budget.
func (w *window) reserved() int { return int(w.size - minWindow) }

// windows are those of all streams of a session, from the moment on when the
// peer may use them until its bytes are for nobody.
type windows struct {
	most   uint32           // that one may grow to
	budget transport.Budget // nil: without bounds
	quota  transport.Quota  // nil: none
	tell   func()           // makes somebody call next until it is false

	mu      sync.Mutex
	streams map[uint32]*window
	news    []*window // those of which something is due, and some that have ended since
	telling bool
	trip    roundTrip
	over    bool // nothing is granted any more, to anybody
}

func newWindows(most uint32, cfg transport.SessionConfig, tell func()) *windows {
	return &windows{most: most, budget: cfg.Budget, quota: cfg.Quota, tell: tell, streams: make(map[uint32]*window)}
}

// enter returns the window of a stream, which may be a new one.
func (ws *windows) enter(stream uint32) *window {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.streams[stream]
	if w == nil {
		w = &window{stream: stream, size: minWindow, open: minWindow, granted: time.Now()}
		ws.streams[stream] = w
	}
	return w
}

// arrive takes n bytes off what the peer may send. It is false for streams that
// nobody reads.
func (ws *windows) arrive(stream, n uint32) (wanted bool, err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.streams[stream]
	if w == nil {
		return false, nil
	}
	if n > w.open {
		return true, violation("more bytes on stream %d than its window allows", stream)
	}
	w.open -= n
	return true, nil
}

// finish ends granting to a peer that writes no more. What is unread stays
// reserved.
func (ws *windows) finish(stream uint32) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.streams[stream]; w != nil {
		w.over = true
	}
}

// finishAll does so for all streams: the peer has gone.
func (ws *windows) finishAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.over = true
}

// consume grants what was read, once it is half of the window.
func (ws *windows) consume(w *window, n uint32) {
	if ws.grant(w, n) {
		ws.tell()
	}
}

// grant is true where there is something to be told, and nobody does so yet.
func (ws *windows) grant(w *window, n uint32) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.discharge(w, n)
	w.read += n
	if w.over || ws.over || w.read < w.size/2 {
		return false
	}
	now := time.Now()
	more := w.read + ws.grow(w, now)
	if w.due == 0 {
		ws.news = append(ws.news, w)
	}
	w.open += more
	w.due += more
	w.read, w.granted = 0, now
	first := !ws.telling
	ws.telling = true
	return first
}

// grow doubles a window whose reader has been waiting for the peer, and returns
// by how much it did.
func (ws *windows) grow(w *window, now time.Time) uint32 {
	more := min(w.size, ws.most-w.size)
	if more == 0 {
		return 0
	}
	trip, known := ws.trip.latest(now)
	if !known || now.Sub(w.granted) > growTrips*trip {
		return 0
	}
	if ws.budget != nil && !ws.budget.Acquire(int(more)) {
		return 0
	}
	w.size += more
	return more
}

// next is what the peer is to be told; false ends the telling.
func (ws *windows) next() (message header, ok bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if number, ok := ws.trip.ask(time.Now()); ok {
		return questionMessage(number), true
	}
	for len(ws.news) > 0 {
		w := ws.news[0]
		ws.news = slices.Delete(ws.news, 0, 1)
		if due := w.due; due > 0 {
			w.due = 0
			return creditMessage(w.stream, due), true
		}
	}
	ws.telling = false
	return header{}, false
}

// answered takes the answer to a question, or one that nobody asked for.
func (ws *windows) answered(number uint32) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.trip.answered(number, time.Now())
}

// leave ends the window of a stream that nobody reads any more.
func (ws *windows) leave(stream uint32) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.streams[stream]; w != nil {
		delete(ws.streams, stream)
		ws.end(w)
	}
}

// close ends all windows, when nothing arrives any more.
func (ws *windows) close() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.streams {
		ws.end(w)
	}
	clear(ws.streams)
}

func (ws *windows) end(w *window) {
	w.over, w.due = true, 0
	ws.discharge(w, math.MaxUint32)
	if n := w.reserved(); n > 0 && ws.budget != nil {
		ws.budget.Release(n)
	}
}
