package agent

import "time"

// A request that takes long is seen to apart from the shift in which it came. The goroutine
// that has read it does that itself, and another one reads on: that one may wait for a
// thread to wake up, which what has come need not.

const (
	// lateReader is after what time the one who reads on is late: every processor is busy
	// with what came before.
	lateReader = time.Millisecond

	// stayFor is for how many requests the reader then stays where it is: a handler that
	// computes would keep from it the processor on which it could go on at once.
	stayFor = 64
)

// pass is when a shift was passed on to another goroutine, and what that tells.
type pass struct {
	at   time.Time
	stay int // requests that are for other goroutines
}

// begun is called by the one who reads on.
func (p *pass) begun() {
	if !p.at.IsZero() && time.Since(p.at) > lateReader {
		p.stay = stayFor
	}
	p.at = time.Time{}
}

// allowed reports whether the shift may be passed on for a request.
func (p *pass) allowed() bool {
	if p.stay > 0 {
		p.stay--
		return false
	}
	return true
}

// apart has a request seen to where nobody waits for that to end. s may be nil, for
// nobody's shift.
func (s *shift) apart(r *Request) {
	if s == nil || s.lock != nil || !s.over && !s.pass.allowed() {
		go r.seeTo()
		return
	}
	s.next = r
}

// passOn lets another goroutine have the shift of one who has a request to see to.
func (s *shift) passOn() {
	s.next = nil
	if !s.over {
		s.pass.at = time.Now()
		go s.conn.readOn(s)
	}
}

// seeTo opens a request that is large, or runs one that has a slot.
func (r *Request) seeTo() {
	if r.arrival != nil {
		r.conn.openLarge(r)
	} else {
		r.conn.agent.slots.run(r)
	}
}
