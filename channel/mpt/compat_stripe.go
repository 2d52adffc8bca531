package mpt

import (
	"cmp"
	"math/bits"
	"sync"
)

// stripe is a transfer of the compatible dialect, with one piece per lane. It completes with its last
// piece, and is then reused.
type stripe struct {
	pool  *stripes
	piece func(error) // the done function of each piece, allocated once

	// Guarded by stripes.mu:
	remaining int // pieces in progress, plus one while beginStripe runs
	err       error
	done      func(error)
}

// stripes holds the transfers of an end that are in progress, and completed stripes for reuse.
type stripes struct {
	onAllFailed func(error) // called when all transfers in progress have failed

	mu       sync.Mutex
	free     []*stripe
	healthy  int   // stripes in progress without a failed piece
	firstErr error // of the first failed stripe
}

// begin returns a stripe s, new or reused, with the given number of pieces. Each piece must call
// s.piece with its outcome once. After the caller has begun all pieces, it must call s.through(nil)
// once. The last of these calls completes the stripe: s.piece calls done with the first error or
// nil; s.through returns done instead. s must not be used after that.
func (h *stripes) begin(pieces int, done func(error)) *stripe {
	h.mu.Lock()
	defer h.mu.Unlock()
	var s *stripe
	if n := len(h.free); n > 0 {
		s, h.free = h.free[n-1], h.free[:n-1]
	} else {
		s = &stripe{pool: h}
		s.piece = func(err error) {
			if done, err := s.through(err); done != nil {
				done(err)
			}
		}
	}
	s.remaining, s.done = pieces+1, done
	h.healthy++
	return s
}

// through records that one piece of s has ended with err. If it was the last piece, through returns
// the done function of the stripe, which the caller must call with first, the first error of any
// piece or nil. It then also makes s available for reuse. Before the last piece, done and first are
// nil.
//
// If a stripe has failed, and every stripe in progress has a failed piece, through ends the
// channel. It does not do so earlier, because a stripe without a failed piece may still complete.
func (s *stripe) through(err error) (done func(error), first error) {
	h := s.pool
	h.mu.Lock()
	healthy := s.err == nil
	s.err = cmp.Or(s.err, err)
	s.remaining--
	if healthy && (s.err != nil || s.remaining == 0) {
		h.healthy--
	}
	h.firstErr = cmp.Or(h.firstErr, s.err)
	if s.remaining == 0 {
		done, first = s.done, s.err
		s.done, s.err = nil, nil
		h.free = append(h.free, s)
	}
	var lost error
	if h.healthy == 0 {
		lost = h.firstErr
	}
	h.mu.Unlock()
	if lost != nil {
		h.onAllFailed(lost)
	}
	return done, first
}

// laneOffset returns size*i/lanes, rounded down: the offset at which the part of lane i begins in a
// tensor of size bytes, in the compatible dialect. The product does not overflow. i may equal
// lanes; the result is then size.
func laneOffset(size, i, lanes int) int {
	hi, lo := bits.Mul64(uint64(size), uint64(i))
	at, _ := bits.Div64(hi, lo, uint64(lanes))
	return int(at)
}
