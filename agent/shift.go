package agent

import "sync"

// shift is the time in which one goroutine sees to what comes by a pipe: the one that
// reads on, or a caller who looks for his answer. What is Short runs in it. When that is
// about to wait, maybe for what comes by the same pipe, it gives the shift up first, and
// somebody else sees to that.
type shift struct {
	lock *sync.Mutex // of the callers who look, given up with the shift; nil for
	conn *conn       // the goroutine that reads on, for which another one is begun
	over bool
	next *Request // for the goroutine that has read it, see apart
	pass pass
}

// relieve ends the shift before its time. s may be nil, for nobody's.
func (s *shift) relieve() {
	switch {
	case s == nil || s.over:
		return
	case s.lock != nil:
		s.lock.Unlock()
	default:
		go s.conn.readOn(&shift{conn: s.conn})
	}
	s.over = true
}

// end is called by a caller who looks no more.
func (s *shift) end() {
	if !s.over {
		s.lock.Unlock()
	}
}
