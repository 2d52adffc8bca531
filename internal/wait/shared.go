package wait

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// SharedWaiter lets a goroutine that is blocked until memory changes take part in the spins of others.
// The peer that makes the change sends a doorbell, for which the process must be woken. While another
// goroutine of the process is in MemoryPoller.PollForAll, that one polls for this one too, and the peer
// need not send the doorbell.
//
// One goroutine at a time uses a SharedWaiter.
type SharedWaiter struct {
	ready   func() bool
	wake    func()
	request func(on bool)
	shared  *sharedWaiters
}

// NewSharedWaiter returns a SharedWaiter. ready reports whether the memory has changed, and wake makes
// the caller of Begin check that. request asks the peer for a doorbell or, if on is false, no longer.
// After it has asked for one, it calls wake if the memory has changed, or if it could not ask. None of
// the three may block, or call methods of a SharedWaiter. They are called between Begin and End, and by
// these.
func NewSharedWaiter(ready func() bool, wake func(), request func(on bool)) *SharedWaiter {
	return &SharedWaiter{ready: ready, wake: wake, request: request, shared: &processWaiters}
}

// Begin is called after the caller has asked for a doorbell, before it blocks. From then on a goroutine
// in PollForAll polls for it as well, unless maxShared others have begun since.
func (w *SharedWaiter) Begin() { w.shared.add(w) }

// End ends the wait. When it returns, no function of w is being called, nor will be.
func (w *SharedWaiter) End() { w.shared.remove(w) }

// processWaiters has the SharedWaiters of this process. Like the spin arbiter it has nothing that two
// users of the package could want to configure differently.
var processWaiters sharedWaiters

const (
	// maxShared bounds the SharedWaiters for which a spin polls. To poll for one takes some 20 ns, a
	// wake-up 30 to 50 µs.
	maxShared = 128

	// minShared is the smallest number of them. One may be that of the connection itself.
	minShared = 2
)

// sharedWaiters polls for SharedWaiters, on a goroutine that spins; at most one does so at a time.
type sharedWaiters struct {
	callers atomic.Int32 // of lock, to which the goroutine that spins leaves mu

	mu       sync.Mutex
	waiters  []*SharedWaiter // at most maxShared, those that have begun last, the oldest first
	spinning bool            // a goroutine polls for them
	backoff  backoff
}

func (s *sharedWaiters) lock() {
	s.callers.Add(1)
	s.mu.Lock()
	s.callers.Add(-1)
}

func (s *sharedWaiters) add(w *SharedWaiter) {
	s.lock()
	defer s.mu.Unlock()
	if len(s.waiters) == maxShared {
		if s.spinning {
			s.waiters[0].request(true)
		}
		s.waiters = slices.Delete(s.waiters, 0, 1)
	}
	s.waiters = append(s.waiters, w)
	if s.spinning {
		w.request(false)
	}
}

func (s *sharedWaiters) remove(w *SharedWaiter) {
	s.lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiters, w); i >= 0 {
		s.waiters = slices.Delete(s.waiters, i, i+1)
	}
}

// spin polls for the caller and for all waiters, with yields between, until the caller or one of them is
// ready, or the time to spin, or spinner.stop, ends it. It reports whether the caller is ready. A waiter
// that is ready is woken; the spin then ends, so that its goroutine can run here. If the caller may not
// spin now, spin returns false without calling ready. It does not use spinner.backoff and
// spinner.placement, which are about one peer.
func (s *sharedWaiters) spin(by *spinner, ready func() bool) bool {
	n, ok := s.begin(by)
	if !ok {
		return false
	}
	own, found := false, false
	for range pollsBeforeYield / (1 + n) {
		if own, found = s.poll(ready); found {
			break
		}
	}
	if !found && by.registration.arbiter.takeStarted() {
		runtime.Gosched()
	}
	now := by.now()
	end, took := now+by.bound, time.Duration(0)
	for yields := 1; !found && now < end && (by.stop == nil || !by.stop()); yields++ {
		if yields%yieldsPerGosched == 0 && runtime.GOMAXPROCS(0) == 1 {
			runtime.Gosched() // a goroutine may run here until it blocks or the runtime preempts it
		}
		last := by.now()
		by.yield()
		now = by.now()
		took = now - last
		own, found = s.poll(ready)
	}
	result := spinInterrupted
	switch {
	case took >= sliceYield:
		result = spinDescheduled
	case found:
		result = spinFound
	case now >= end:
		result = spinExpired
	}
	s.end(result)
	return own
}

// spinResult is how a spin for all has ended.
type spinResult int

const (
	spinFound       spinResult = iota // there was input
	spinExpired                       // the time to spin has passed
	spinDescheduled                   // the last yield has taken sliceYield; there may be input
	spinInterrupted                   // by spinner.stop
)

const (
	// sliceYield is the duration of a yield in which a thread that does not yield has run here, for its
	// whole time slice. Meanwhile no waiter can be woken by a doorbell.
	sliceYield = time.Millisecond

	// skipDescheduled is the number of waits without a spin for all after such a yield.
	skipDescheduled = 64
)

// begin begins a spin: it makes the peers of all waiters send no doorbells, and returns how many waiters
// there are. It reports false if there are too few, another goroutine spins, or the wait must pass
// without a spin.
func (s *sharedWaiters) begin(by *spinner) (n int, ok bool) {
	if by.bound <= 0 || by.stop != nil && by.stop() {
		return 0, false
	}
	s.lock()
	defer s.mu.Unlock()
	if s.spinning || len(s.waiters) < minShared || !s.backoff.allow() {
		return 0, false
	}
	s.spinning = true
	for _, w := range s.waiters {
		w.request(false)
	}
	return len(s.waiters), true
}

// poll polls for the caller and then for each waiter, until one is ready. It wakes a waiter that is. It
// is called between begin and end.
func (s *sharedWaiters) poll(ready func() bool) (own, found bool) {
	if ready() {
		return true, true
	}
	if s.callers.Load() > 0 || !s.mu.TryLock() {
		return false, false
	}
	defer s.mu.Unlock()
	for i, w := range s.waiters {
		if w.ready() {
			w.wake()
			s.waiters = slices.Delete(s.waiters, i, i+1)
			return false, true
		}
	}
	return false, false
}

// end ends the spin with that result, and makes the peers send doorbells again.
func (s *sharedWaiters) end(result spinResult) {
	s.lock()
	defer s.mu.Unlock()
	s.spinning = false
	switch result {
	case spinFound:
		s.backoff.succeeded()
	case spinExpired:
		s.backoff.failed()
	case spinDescheduled:
		s.backoff.left = skipDescheduled
	}
	for _, w := range s.waiters {
		w.request(true)
	}
}
