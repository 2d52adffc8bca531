package mux

import (
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// growTrips bounds the round trips since the last grant of a stream whose window grows. A reader
// that took longer was not waiting for its peer.
const growTrips = 4

// maxTripAge is the time for which a measurement of the round trip is not repeated.
const maxTripAge = time.Second

// window is the receive window of a stream. Of its size bytes, the peer may still send some (open),
// some are unread, and some were read and not granted again (read). So a reader that goes on always
// reaches the point at which it grants. windows.mu guards it.
type window struct {
	stream       uint32
	size         uint32
	open         uint32    // the peer may still send
	read         uint32    // since the last grant
	grantedAt    time.Time // time of the last grant
	unsentCredit uint32    // granted, and not yet sent to the peer
	stopped      bool      // grants no more credit

	received *receiveBuffer // not guarded
}

// windows holds the receive windows of a session, each from the time when the peer may use it until
// the stream is no longer read. Its methods may be called concurrently.
type windows struct {
	maxWindow uint32           // limit of each
	budget    transport.Budget // nil: unlimited
	quota     transport.Quota  // nil: none
	onCredit  func()           // makes a goroutine call nextMessage until it returns false
	segments  segmentPool      // memory of the receiveBuffers

	mu            sync.Mutex
	streams       map[uint32]*window
	pending       []*window // windows with unsent credit, and some that were removed since
	sendingCredit bool
	trip          roundTrip
	stopped       bool // no window grants any more
}

// roundTrip measures the time from a ping request to its reply, when a window could grow and the
// last measurement is missing or too old.
type roundTrip struct {
	measured bool
	length   time.Duration // the last measurement, of any age
	at       time.Time     // of that measurement

	wanted bool // a request is to be sent
	pinged bool // it was sent and has no reply yet
	number uint32
	began  time.Time
}

func newWindows(maxWindow uint32, cfg transport.SessionConfig, onCredit func()) *windows {
	return &windows{maxWindow: maxWindow, budget: cfg.Budget, quota: cfg.Quota, onCredit: onCredit, streams: make(map[uint32]*window)}
}

// open returns the receive window of a stream. If there is none, it creates one with the 256 KiB
// that the protocol prescribes. It acquires mu, which also guards the result.
func (ws *windows) open(stream uint32) *window {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.streams[stream]
	if w == nil {
		received := &receiveBuffer{pool: &ws.segments, quota: ws.quota, changed: make(chan struct{}, 1)}
		w = &window{stream: stream, size: minWindow, open: minWindow, grantedAt: time.Now(), received: received}
		ws.streams[stream] = w
	}
	return w
}

// arrive counts n bytes that the peer sends on a stream against the stream's window, and returns the
// buffer for them. It is nil if the stream has no window, because it is no longer read, so that the
// caller must discard the bytes. The error is a [ProtocolError] if n exceeds the bytes that the peer
// may still send.
func (ws *windows) arrive(stream, n uint32) (*receiveBuffer, error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.streams[stream]
	if w == nil {
		return nil, nil
	}
	if n > w.open {
		return nil, violation("more bytes on stream %d than its window allows", stream)
	}
	w.open -= n
	return w.received, nil
}

// end makes the window of a stream grant no more credit, because no bytes follow, and returns its
// buffer. The bytes that the window has acquired from the budget stay charged until remove or close,
// since bytes may be unread. It returns nil if there is no such window.
func (ws *windows) end(stream uint32) *receiveBuffer {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.streams[stream]
	if w == nil {
		return nil
	}
	w.stopped = true
	return w.received
}

// stopAll makes all windows grant no more credit, because the session has ended. They keep their
// charges until remove or close.
func (ws *windows) stopAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.stopped = true
}

// consume records that n bytes of w were read. Once half of the window was read since the last grant
// it grants the peer a half, or as many as were read, and more if the window grows. The remainder
// counts for the next grant; otherwise it would be ungranted for long. consume then calls
// ws.onCredit, which makes a goroutine send the credit, unless one is sending credit already. After
// end or stopAll it grants nothing. The caller does not hold mu.
func (ws *windows) consume(w *window, n uint32) {
	ws.mu.Lock()
	w.read += n
	if w.stopped || ws.stopped || w.read < w.size/2 {
		ws.mu.Unlock()
		return
	}
	now := time.Now()
	read := w.read - w.read%(w.size/2)
	granted := read + ws.grow(w, now)
	w.read -= read
	w.grantedAt = now
	ws.grantAndUnlock(w, granted)
}

// grantAndUnlock grants the peer n more bytes of w. The caller holds mu, which grantAndUnlock releases.
func (ws *windows) grantAndUnlock(w *window, n uint32) {
	if w.unsentCredit == 0 {
		ws.pending = append(ws.pending, w)
	}
	w.open += n
	w.unsentCredit += n
	idle := !ws.sendingCredit
	ws.sendingCredit = true
	ws.mu.Unlock()
	if idle {
		ws.onCredit()
	}
}

// enlarge makes w larger by up to n bytes, as far as ws.maxWindow permits, and grants them at once. It does
// nothing if the budget does not permit that, or if w grants no more. The caller does not hold mu.
func (ws *windows) enlarge(w *window, n int) {
	ws.mu.Lock()
	more := min(n, int(ws.maxWindow)-int(w.size))
	if w.stopped || ws.stopped || more <= 0 || ws.budget != nil && !ws.budget.Acquire(more) {
		ws.mu.Unlock()
		return
	}
	w.size += uint32(more)
	ws.grantAndUnlock(w, uint32(more))
}

// grow doubles the size of w, up to ws.maxWindow, if the reader of w has been waiting for the peer
// and the budget permits that. It returns by how many bytes the window has grown, possibly 0. now
// is the current time. If the last measurement of the round trip is missing or too old, and none is
// in progress, grow requests another one. The caller holds mu.
func (ws *windows) grow(w *window, now time.Time) uint32 {
	more := min(w.size, ws.maxWindow-w.size)
	if more == 0 {
		return 0
	}
	trip := &ws.trip
	if !trip.pinged && (!trip.measured || now.Sub(trip.at) >= maxTripAge) {
		trip.wanted = true
	}
	if !trip.measured || now.Sub(w.grantedAt) > growTrips*trip.length {
		return 0
	}
	if ws.budget != nil && !ws.budget.Acquire(int(more)) {
		return 0
	}
	w.size += more
	return more
}

// nextMessage returns the next message to send to the peer, a ping request or credit, and true. The
// credit then counts as sent. It returns false if there is none; the caller then stops sending, and
// the next call of consume that grants credit calls onCredit again.
func (ws *windows) nextMessage() (message header, ok bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if trip := &ws.trip; trip.wanted {
		trip.wanted, trip.pinged = false, true
		trip.number++
		trip.began = time.Now()
		return pingMessage(syn, trip.number), true
	}
	for len(ws.pending) > 0 {
		w := ws.pending[0]
		ws.pending = slices.Delete(ws.pending, 0, 1)
		if unsentCredit := w.unsentCredit; unsentCredit > 0 {
			w.unsentCredit = 0
			return streamMessage(credit, w.stream, unsentCredit), true
		}
	}
	ws.sendingCredit = false
	return header{}, false
}

// pingReplied records a round trip, from the ping request that was sent last to its reply, if
// number is that of the request. It ignores other replies: the peer may send any.
func (ws *windows) pingReplied(number uint32) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if trip := &ws.trip; trip.pinged && number == trip.number {
		trip.pinged, trip.measured = false, true
		trip.at = time.Now()
		trip.length = trip.at.Sub(trip.began)
	}
}

// remove discards the window of a stream that is no longer read, and releases the bytes that it has
// acquired from the budget and the quota. It does nothing if there is no such window.
func (ws *windows) remove(stream uint32) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.streams[stream]; w != nil {
		delete(ws.streams, stream)
		ws.release(w)
	}
}

// close discards all windows and releases the bytes that they have acquired from the budget and the
// quota. No bytes may arrive after that.
func (ws *windows) close() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.streams {
		ws.release(w)
	}
	clear(ws.streams)
}

func (ws *windows) release(w *window) {
	w.stopped, w.unsentCredit = true, 0
	w.received.drop()
	if n := int(w.size - minWindow); n > 0 && ws.budget != nil { // acquired by grow
		ws.budget.Release(n)
	}
}
