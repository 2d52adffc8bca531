package mux

import (
	"math"
	"sync"
)

// sendWindows holds the send windows of a session: what this end may still send on each stream.
type sendWindows struct {
	mu      sync.Mutex
	streams map[uint32]*sendWindow
}

// sendWindow is the send window of one stream: the bytes that the peer permits this end to send.
// sendWindows.mu guards its fields except changed. Only the writer of the stream waits for changed.
type sendWindow struct {
	all       *sendWindows
	bytes     uint64        // that may be sent
	announced bool          // this end's first message of the stream was sent; no data may be sent before
	reset     bool          // the peer has reset the stream
	changed   chan struct{} // holds a token if the window may have changed
}

func newSendWindows() *sendWindows { return &sendWindows{streams: make(map[uint32]*sendWindow)} }

// open returns the send window of a stream. If there is none, it creates one with the 256 KiB that
// the protocol prescribes. s.mu guards the result.
func (s *sendWindows) open(stream uint32) *sendWindow {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.streams[stream]
	if a == nil {
		a = &sendWindow{all: s, bytes: minWindow, changed: make(chan struct{}, 1)}
		s.streams[stream] = a
	}
	return a
}

// update calls change with the window of a stream while it holds s.mu, and then wakes the stream's
// writer. It does nothing if there is no such window.
func (s *sendWindows) update(stream uint32, change func(*sendWindow)) {
	s.mu.Lock()
	a := s.streams[stream]
	if a != nil {
		change(a)
	}
	s.mu.Unlock()
	if a == nil {
		return
	}
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// grant adds n bytes, which the peer has granted, to the window of a stream, up to 2^32-1 bytes,
// and wakes the stream's writer. It does nothing if there is no such window.
func (s *sendWindows) grant(stream, n uint32) {
	s.update(stream, func(a *sendWindow) { a.bytes = min(a.bytes+uint64(n), math.MaxUint32) })
}

func (s *sendWindows) remove(stream uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, stream)
}

// claim takes up to n bytes of credit from the window without blocking and returns how many,
// possibly 0. It takes none before the stream is announced to the peer. The caller sends that many
// bytes, or returns the credit with refund. The error is errReset if the peer has reset the stream.
func (a *sendWindow) claim(n int) (int, error) {
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	switch {
	case a.reset:
		return 0, errReset
	case !a.announced:
		return 0, nil
	}
	n = int(min(uint64(n), a.bytes))
	a.bytes -= uint64(n)
	return n, nil
}

// refund returns n bytes of credit to the window, which claim has taken and the caller has not
// used.
func (a *sendWindow) refund(n int) {
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	a.bytes += uint64(n)
}

// available returns the credit of the window.
func (a *sendWindow) available() int {
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	return int(min(a.bytes, math.MaxInt32))
}
