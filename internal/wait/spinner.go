package wait

import (
	"sync/atomic"
	"time"
)

// spinner decides when and how long one reader spins. Only the goroutine that reads uses it.
type spinner struct {
	bound        time.Duration // longest spin; 0: never
	placement    *placement    // nil if the kernel brings the bytes, as for sockets
	registration *registration
	backoff      backoff
	now          func() time.Duration
	yield        func()
}

// poll calls ready until ready returns true or the spin ends, and reports whether ready returned
// true. If the reader may not spin now, poll returns false without calling ready.
func (s *spinner) poll(ready func() bool) bool {
	return s.bound > 0 && s.registration.exclusive() && s.backoff.allow() && s.spin(ready, false)
}

// pollDue does what poll does, for a reader that expects input soon: it spins even while input
// arrives for other readers. Only one goroutine of the process spins in pollDue at a time; in
// others pollDue returns false without calling ready.
func (s *spinner) pollDue(ready func() bool) bool {
	if s.bound <= 0 || !s.registration.arbiter.due.CompareAndSwap(false, true) {
		return false
	}
	defer s.registration.arbiter.due.Store(false)
	return s.backoff.allow() && s.spin(ready, true)
}

// spin calls ready, with yields between the calls, until ready returns true or s.bound has passed,
// and reports whether ready returned true. Unless due is true, an arrival for another reader ends
// the spin early. If it does not end early, spin records in s.backoff whether it has found input.
func (s *spinner) spin(ready func() bool, due bool) bool {
	if s.placement != nil && s.pollBeforeYield(ready) {
		return true
	}
	yields, now := 0, s.now()
	for end := now + s.bound; due || s.registration.exclusive(); {
		s.yield()
		yields++
		took := s.now() - now
		if ready() {
			s.backoff.succeeded()
			if s.placement != nil && s.placement.late(yields, took) {
				migrate()
			}
			return true
		}
		if now = s.now(); now >= end {
			s.backoff.failed()
			return false
		}
	}
	return false
}

// pollBeforeYield calls ready without yielding, as many times as s.placement determines, until
// ready returns true. It reports whether ready returned true. s.placement must not be nil.
func (s *spinner) pollBeforeYield(ready func() bool) bool {
	for range s.placement.polls() {
		if ready() {
			s.placement.early()
			s.backoff.succeeded()
			return true
		}
	}
	return false
}

// maxSkip is the largest number of consecutive waits without a spin.
const maxSkip = 256

// backoff makes spins rare while they find nothing: after each such spin, twice as many waits as
// before pass without a spin. The zero value permits spins.
type backoff struct {
	skip int // waits without a spin after the last spin that found nothing
	left int // of these, to come
}

// allow reports whether the wait that begins may spin: not while waits must pass without a spin,
// because spins have found nothing. It counts the wait, so it is called once for each.
func (s *backoff) allow() bool {
	if s.left > 0 {
		s.left--
		return false
	}
	return true
}

func (s *backoff) succeeded() { s.skip = 0 }

func (s *backoff) failed() {
	s.skip = min(max(2*s.skip, 1), maxSkip)
	s.left = s.skip
}

// arbiter decides which reader of the process may spin. All Readers and MemoryPollers are
// registered with it.
type arbiter struct {
	registrations atomic.Uint64 // number of registrations so far
	last          atomic.Uint64 // number of the registration with the last arrival
	due           atomic.Bool   // a goroutine spins in pollDue
}

// process is the arbiter of this process. It holds nothing that two users of the package could want
// to configure differently.
var process arbiter

// registration identifies one reader to the arbiter and counts its arrivals. Several goroutines may
// use it.
type registration struct {
	arbiter *arbiter
	number  uint64
	run     atomic.Int32 // consecutive arrivals for this reader alone, up to exclusiveAfter
}

// exclusiveAfter is how long that run must be before the reader may spin.
const exclusiveAfter = 8

func (r *arbiter) register() *registration {
	return &registration{arbiter: r, number: r.registrations.Add(1)}
}

// arrived records that input has arrived for this reader. It writes to shared fields only if that
// changes them, since other processors read them all the time.
func (s *registration) arrived() {
	if s.arbiter.last.Load() != s.number {
		s.arbiter.last.Store(s.number)
		s.run.Store(0)
	} else if s.run.Load() < exclusiveAfter {
		s.run.Add(1)
	}
}

// exclusive reports whether the reader may spin: at least the last exclusiveAfter arrivals of the
// process were all for this reader.
func (s *registration) exclusive() bool {
	return s.run.Load() >= exclusiveAfter && s.arbiter.last.Load() == s.number
}
