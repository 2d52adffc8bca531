package mux

import "time"

// fresh is how long a measurement is not repeated.
const fresh = time.Second

// roundTrip is how long a question takes to the peer and its answer back. It is
// measured when somebody wants to know; the first who does so learns nothing.
type roundTrip struct {
	known  bool
	length time.Duration
	at     time.Time // when length was measured

	wanted bool // a question is to be sent
	asked  bool // it was sent, and not answered
	number uint32
	began  time.Time
}

// latest returns what was measured last, however long ago, and wants to know
// better where that is not fresh.
func (r *roundTrip) latest(now time.Time) (length time.Duration, known bool) {
	if !r.asked && (!r.known || now.Sub(r.at) >= fresh) {
		r.wanted = true
	}
	return r.length, r.known
}

// ask returns the number of a question, if there is one to be sent.
func (r *roundTrip) ask(now time.Time) (number uint32, ok bool) {
	if !r.wanted {
		return 0, false
	}
	r.wanted, r.asked = false, true
	r.number++
	r.began = now
	return r.number, true
}

func (r *roundTrip) answered(number uint32, now time.Time) {
	if !r.asked || number != r.number {
		return
	}
	r.asked, r.known = false, true
	r.length, r.at = now.Sub(r.began), now
}
