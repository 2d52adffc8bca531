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

// open returns the window of a stream. It creates it, with the 256 KiB of the protocol, if it does
// not exist.
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

// update calls change, with the lock held, with the window of a stream, and wakes the stream's
// writer. It does nothing for a stream without window.
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

// grant adds to the window of a stream n bytes that the peer has granted. A window has at most
// 2^32-1 bytes. It does nothing for a stream without window.
func (s *sendWindows) grant(stream, n uint32) {
	s.update(stream, func(a *sendWindow) { a.bytes = min(a.bytes+uint64(n), math.MaxUint32) })
}

func (s *sendWindows) remove(stream uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, stream)
}

// claim takes up to n bytes from the window without blocking and returns how many, possibly 0. The
// caller sends that many bytes, or gives them back with refund. The error is errReset if the peer
// has reset the stream.
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

// refund gives back to the window n bytes that claim has taken and that were not sent.
func (a *sendWindow) refund(n int) {
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	a.bytes += uint64(n)
}
