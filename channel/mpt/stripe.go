package mpt

import "sync"

// stripe is a transfer of the compatible dialect: as many pieces as there are
// lanes. It is through when they all are.
type stripe struct {
	home  *stripes
	piece func(error) // s.pieceDone, made once

	mu   sync.Mutex
	left int // pieces that are not through, and one for who begins it
	err  error
	done func(error)
}

// stripes keeps those that are not in use.
type stripes struct {
	mu   sync.Mutex
	free []*stripe
}

// begin returns a stripe of that many pieces. It is not through before its
// caller has called begun.
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
	return s
}

// pieceDone is the done of each piece.
func (s *stripe) pieceDone(err error) {
	if done, err := s.through(err); done != nil {
		done(err)
	}
}

// through counts a piece. It returns the stripe's own done behind the last, and
// the first error of any.
func (s *stripe) through(err error) (done func(error), first error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.left--
	if s.left > 0 {
		s.mu.Unlock()
		return nil, nil
	}
	done, first = s.done, s.err
	s.done, s.err = nil, nil
	s.mu.Unlock()
	s.home.mu.Lock()
	defer s.home.mu.Unlock()
	s.home.free = append(s.home.free, s)
	return done, first
}
