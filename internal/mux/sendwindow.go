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
	announced bool          // the stream's first message was sent
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

// announce records that this end's first message about a stream was sent, before which no data may
// be sent, and wakes the writer. It does nothing for a stream without window.
func (s *sendWindows) announce(stream uint32) {
	if a := s.lookup(stream); a != nil {
		a.change(func() { a.announced = true })
	}
}

// grant adds n bytes that the peer has granted to the window of a stream, and wakes the writer. It
// does nothing for a stream without window.
func (s *sendWindows) grant(stream, n uint32) {
	if a := s.lookup(stream); a != nil {
		a.change(func() { a.bytes = min(a.bytes+uint64(n), math.MaxUint32) })
	}
}

// markReset records that the peer has reset a stream, and wakes the writer. It does nothing for a
// stream without window.
func (s *sendWindows) markReset(stream uint32) {
	if a := s.lookup(stream); a != nil {
		a.change(func() { a.reset = true })
	}
}

func (s *sendWindows) lookup(stream uint32) *sendWindow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[stream]
}

func (s *sendWindows) remove(stream uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, stream)
}

func (a *sendWindow) change(f func()) {
	a.all.mu.Lock()
	f()
	a.all.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// claim takes up to n bytes from the window without blocking and returns how many, possibly 0. The
// caller sends as many, or returns them with refund. The error is errReset if the peer has reset
// the stream.
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

// refund returns n bytes to the window that claim has taken and that were not sent.
func (a *sendWindow) refund(n int) {
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	a.bytes += uint64(n)
}
