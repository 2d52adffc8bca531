package wait

import "time"

// spinner is the policy for one socket. Its methods are for the goroutine that
// reads from it.
type spinner struct {
	bound time.Duration // of a spin; 0 is never
	apart *apart        // nil where the kernel brings what is waited for
	seat  *seat
	shy   shyness
	now   func() time.Duration
	yield func()
}

// find looks until it finds something, and reports that, or gives up. Without a
// spin it does not even look once: yielding to nobody wakes a thread, and whom
// something was handed over to will run as soon as the reader sleeps.
func (s *spinner) find(look func() bool) bool {
	return s.bound > 0 && s.seat.alone() && s.shy.dares() && s.spin(look, false)
}

// findDue is find for who need not be the only one for whom something comes, but the
// only one who says so.
func (s *spinner) findDue(look func() bool) bool {
	if s.bound <= 0 || !s.seat.room.due.CompareAndSwap(false, true) {
		return false
	}
	defer s.seat.room.due.Store(false)
	return s.shy.dares() && s.spin(look, true)
}

// spin looks until it finds something. It makes way for others unless it is due.
func (s *spinner) spin(look func() bool, due bool) bool {
	if s.apart != nil && s.lookOut(look) {
		return true
	}
	yields, now := 0, s.now()
	for end := now + s.bound; due || s.seat.alone(); {
		s.yield()
		yields++
		took := s.now() - now
		if look() {
			s.shy.found()
			if s.apart != nil && s.apart.late(yields, took) {
				stepAside()
			}
			return true
		}
		if now = s.now(); now >= end {
			s.shy.missed()
			return false
		}
	}
	return false
}

// lookOut looks without a yield, for as long as that makes sense.
func (s *spinner) lookOut(look func() bool) bool {
	for range s.apart.looks() {
		if look() {
			s.apart.early()
			s.shy.found()
			return true
		}
	}
	return false
}

// longestPause is the most waits that begin without a spin because of those
// that found nothing before.
const longestPause = 256

// shyness makes spins rare where they find nothing.
type shyness struct {
	pause int // waits without a spin after the last one that found nothing
	left  int // of them
}

// dares is asked once for each wait.
func (s *shyness) dares() bool {
	if s.left > 0 {
		s.left--
		return false
	}
	return true
}

func (s *shyness) found() { s.pause = 0 }

func (s *shyness) missed() {
	s.pause = min(max(2*s.pause, 1), longestPause)
	s.left = s.pause
}
