package mux

import (
	"math"
	"sync"
)

// sending is the windows for the other direction: what this end may still send on a
// stream, as far as its peer has said.
type sending struct {
	mu      sync.Mutex
	streams map[uint32]*allowance
}

// allowance is how much that is for one stream. Of the two ends of a stream only its own
// writer waits for it.
type allowance struct {
	all   *sending
	bytes uint64
	known bool          // the peer has, or will have, heard of the stream
	reset bool          // by the peer
	more  chan struct{} // has a token when something has changed
}

func newSending() *sending { return &sending{streams: make(map[uint32]*allowance)} }

// enter returns the allowance of a stream, which may be a new one.
func (s *sending) enter(stream uint32) *allowance {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.streams[stream]
	if a == nil {
		a = &allowance{all: s, bytes: minWindow, more: make(chan struct{}, 1)}
		s.streams[stream] = a
	}
	return a
}

// introduce notes that this end's first word about a stream has left, before which
// nothing can be sent on it.
func (s *sending) introduce(stream uint32) {
	if a := s.find(stream); a != nil {
		a.change(func() { a.known = true })
	}
}

// grant takes the peer's word for n bytes more.
func (s *sending) grant(stream, n uint32) {
	if a := s.find(stream); a != nil {
		a.change(func() { a.bytes = min(a.bytes+uint64(n), math.MaxUint32) })
	}
}

// end notes that the peer has reset a stream.
func (s *sending) end(stream uint32) {
	if a := s.find(stream); a != nil {
		a.change(func() { a.reset = true })
	}
}

func (s *sending) find(stream uint32) *allowance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[stream]
}

func (s *sending) leave(stream uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, stream)
}

func (a *allowance) change(f func()) {
	a.all.mu.Lock()
	f()
	a.all.mu.Unlock()
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// take claims up to n bytes; 0 where there are none. The error is errReset.
func (a *allowance) take(n int) (int, error) {
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	switch {
	case a.reset:
		return 0, errReset
	case !a.known:
		return 0, nil
	}
	n = int(min(uint64(n), a.bytes))
	a.bytes -= uint64(n)
	return n, nil
}

// giveBack is what was claimed, and not sent.
func (a *allowance) giveBack(n int) {
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	a.bytes += uint64(n)
}
