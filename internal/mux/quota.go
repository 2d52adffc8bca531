package mux

import "math/bits"

// segmentOverhead is what yamux takes for the body of one message beside its bytes: its
// place in a list that grows by doubling, and the rounding of small allocations.
const segmentOverhead = 64

// segmentSize is the memory that yamux takes for a body of n bytes, a power of two.
func segmentSize(n uint32) int { return 1<<bits.Len32(n-1) + segmentOverhead }

// charge counts the memory for a body of n bytes before yamux allocates it. It reports
// false if the session is to be closed, because its peer holds too much.
func (ws *windows) charge(stream, n uint32) bool {
	if ws.quota == nil || n == 0 {
		return true
	}
	if !ws.quota.Charge(segmentSize(n)) {
		return false
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.streams[stream]; w != nil {
		w.segments.Push(n)
	} else {
		ws.quota.Release(segmentSize(n))
	}
	return true
}

// discharge releases the segments of which the last byte is among the next n that were
// read, or never will be: yamux keeps a segment until then. The caller holds mu.
func (ws *windows) discharge(w *window, n uint32) {
	for w.segments.Len() > 0 {
		size := w.segments.Front()
		left := size - w.begun
		if n < left {
			w.begun += n
			return
		}
		n -= left
		w.begun = 0
		w.segments.Pop()
		ws.quota.Release(segmentSize(size))
	}
}
