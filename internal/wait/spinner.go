package wait

import (
	"runtime"
	"sync/atomic"
	"time"
)

// spinner decides when and how long a goroutine spins. One goroutine at a time uses it.
type spinner struct {
	bound        time.Duration // longest spin; 0: never
	placement    *placement    // nil if the kernel brings the bytes, as for sockets
	registration *registration
	busy         *busyPoller // for which the reader polls while it spins
	backoff      backoff
	now          func() time.Duration
	yield        func()
	stop         func() bool // reports whether a spin that is not due must end early; nil for never
}

// poll calls ready until ready returns true or the spin ends, and reports whether ready returned
// true. If the reader may not spin now, poll returns false without calling ready.
func (s *spinner) poll(ready func() bool) bool {
	if s.bound <= 0 || !s.registration.exclusive() || s.stop != nil && s.stop() {
		return false
	}
	return s.backoff.allow() && s.spin(ready, false)
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
// and reports whether ready returned true. Unless due is true, arrivals for other readers and
// s.stop end the spin early, see exclusive. If it does not end early, spin records in s.backoff whether it has
// found input.
func (s *spinner) spin(ready func() bool, due bool) bool {
	s.busy.spinning()
	if s.placement != nil && s.pollBeforeYield(ready) {
		return true
	}
	if s.placement != nil && s.registration.arbiter.takeStarted() {
		runtime.Gosched()
	}
	yields, now := 0, s.now()
	for end := now + s.bound; due || s.registration.exclusive(); {
		if s.placement != nil && yields%yieldsPerGosched == yieldsPerGosched-1 && runtime.GOMAXPROCS(0) == 1 {
			runtime.Gosched() // a goroutine may run here until it blocks or the runtime preempts it
			now = s.now()
		}
		s.yield()
		yields++
		took := s.now() - now
		if yields == 1 && s.placement != nil {
			s.placement.yielded(took)
		}
		if s.busy.pollOne() {
			runtime.Gosched() // the woken goroutine runs here
		}
		if !due && s.stop != nil && s.stop() {
			return false
		}
		if ready() {
			s.backoff.succeeded()
			if s.placement != nil && s.placement.late(yields, took) {
				migrate()
			}
			return true
		}
		if now = s.now(); now >= end {
			s.backoff.failed()
			s.busy.gaveUp()
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

// yieldsPerGosched is the number of yields for each one before which a reader of memory lets goroutines of
// its process run, if that has one processor: no other one can run them, and none of them wakes a thread.
const yieldsPerGosched = 4

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

// arbiter decides which readers of the process may spin. All Readers and MemoryPollers are
// registered with it.
type arbiter struct {
	last, previous atomic.Pointer[registration] // the two readers with the last arrivals
	changes        atomic.Uint64                // arrivals for another reader than these two
	due            atomic.Bool                  // a goroutine spins in pollDue
	started        atomic.Bool                  // see GoroutineStarted
}

// process is the arbiter of this process. It holds nothing that two users of the package could want
// to configure differently.
var process arbiter

// registration identifies one reader to the arbiter and counts its arrivals. Several goroutines may
// use it.
type registration struct {
	arbiter    *arbiter
	fd         atomic.Int32  // of a socket; 0 for none
	sinceOther atomic.Int32  // arrivals since the last one for another reader, up to exclusiveAfter
	seen       atomic.Uint64 // value of arbiter.changes at the last arrival
	run        atomic.Int32  // arrivals since then, up to exclusiveAfter
}

// exclusiveAfter is how long that run must be before the reader may spin.
const exclusiveAfter = 8

// arrived records that input has arrived for this reader. It writes to shared fields only if that
// changes them, since other processors read them all the time.
func (s *registration) arrived() {
	if a := s.arbiter; a.last.Load() != s {
		s.sinceOther.Store(0)
		before := a.last.Swap(s)
		if a.previous.Swap(before) != s {
			a.changes.Add(1)
		}
	} else if s.sinceOther.Load() < exclusiveAfter {
		s.sinceOther.Add(1)
	}
	if n := s.arbiter.changes.Load(); s.seen.Load() != n {
		s.seen.Store(n)
		s.run.Store(0)
	} else if s.run.Load() < exclusiveAfter {
		s.run.Add(1)
	}
}

// companion returns the socket of the other reader with arrivals, 0 if that reads memory. found is false if
// there is no other. The socket may be closed, and its number that of another file: the caller may only ask
// for its input, which ends a spin.
func (s *registration) companion() (fd int32, found bool) {
	other := s.arbiter.last.Load()
	if other == s {
		if s.sinceOther.Load() >= exclusiveAfter {
			return 0, false
		}
		other = s.arbiter.previous.Load()
	}
	if other == nil || other == s {
		return 0, false
	}
	return other.fd.Load(), true
}

// exclusive reports whether the reader may spin: it has had exclusiveAfter arrivals during which no
// readers had any but itself and one other. Two readers of memory do each other no harm, and a worker
// that serves two others in turn would otherwise have to be woken for each request. For two sockets see
// socketSpinner.otherHasInput.
func (s *registration) exclusive() bool {
	return s.run.Load() >= exclusiveAfter && s.seen.Load() == s.arbiter.changes.Load()
}

// GoroutineStarted must be called when a goroutine was started whose work should not wait for a reader
// that spins. A MemoryPoller runs no goroutines while it spins, or few; after this call, the next one of the
// process that does not find its change at once lets them run before it continues.
func GoroutineStarted() { process.started.Store(true) }

// takeStarted reports whether GoroutineStarted was called since the last takeStarted that returned
// true.
func (r *arbiter) takeStarted() bool { return r.started.Load() && r.started.Swap(false) }
