package mpt

import (
	"cmp"
	"sync"
)

// stripe is a transfer of the compatible dialect: as many pieces as there are
// lanes. It is through when they all are.
type stripe struct {
	home  *stripes
	piece func(error) // s.pieceDone, made once

	// Guarded by stripes.mu:
	left int // pieces that are not through, and one for who begins it
	err  error
	done func(error)
}

// stripes are all transfers of an end, and those that are not in use.
type stripes struct {
	hopeless func(error) // called when all transfers under way have failed

	mu    sync.Mutex
	free  []*stripe
	sound int   // stripes in use of which no piece has failed
	lost  error // of the first one that has
}

// begin returns a stripe of that many pieces. It is not through before its caller
// has called through for itself.
func (h *stripes) begin(pieces int, done func(error)) *stripe {
	h.mu.Lock()
	defer h.mu.Unlock()
	var s *stripe
	if n := len(h.free); n > 0 {
		s, h.free = h.free[n-1], h.free[:n-1]
	} else {
		s = &stripe{home: h}
		s.piece = s.pieceDone
	}
	s.left, s.done = pieces+1, done
	h.sound++
	return s
}

// pieceDone is the done of each piece.
func (s *stripe) pieceDone(err error) {
	if done, err := s.through(err); done != nil {
		done(err)
	}
}

// through counts a piece. It returns the stripe's own done behind the last, and
// the first error of any. A stripe that has failed waits for others that have not,
// of which the pieces may be on their way; without those nothing can follow it.
func (s *stripe) through(err error) (done func(error), first error) {
	h := s.home
	done, first, lost := h.count(s, err)
	if lost != nil {
		h.hopeless(lost)
	}
	return done, first
}

func (h *stripes) count(s *stripe, err error) (done func(error), first, lost error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sound := s.err == nil
	s.err = cmp.Or(s.err, err)
	s.left--
	if sound && (s.err != nil || s.left == 0) {
		h.sound--
	}
	h.lost = cmp.Or(h.lost, s.err)
	if s.left == 0 {
		done, first = s.done, s.err
		s.done, s.err = nil, nil
		h.free = append(h.free, s)
	}
	if h.sound == 0 {
		lost = h.lost
	}
	return done, first, lost
}
