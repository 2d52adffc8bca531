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
	then func() // for the goroutine that read on, see apart
}

// relieve ends the shift before its time. s may be nil, for nobody's.
func (s *shift) relieve() {
	switch {
	case s == nil || s.over:
		return
	case s.lock != nil:
		s.lock.Unlock()
	default:
		go s.conn.readOn()
	}
	s.over = true
}

// end is called by a caller who looks no more.
func (s *shift) end() {
	if !s.over {
		s.lock.Unlock()
	}
}

// apart has f run where nobody waits for it to end. The goroutine that reads on does so
// itself once the shift is over, and another one reads on: that one may wait for a thread
// to wake up, which what has come need not. s may be nil, for nobody's.
func (s *shift) apart(f func()) {
	if s == nil || s.lock != nil || s.then != nil {
		go f()
		return
	}
	s.then = f
}

// handOver ends the shift for what is to run apart, if there is anything.
func (s *shift) handOver() {
	if s.then != nil {
		s.relieve()
		s.then()
	}
}
