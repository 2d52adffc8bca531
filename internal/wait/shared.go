package wait

import (
	"slices"
	"sync"
)

// SharedWaiter lets a goroutine that is blocked until memory changes take part in the spins of others.
// The peer that makes the change sends a doorbell, for which the process must be woken. While another
// goroutine of the process spins for other memory, it polls for this one too, and the peer need not
// send the doorbell.
//
// One goroutine at a time uses a SharedWaiter.
type SharedWaiter struct {
	ready   func() bool
	wake    func()
	request func(on bool)
	shared  *sharedWaiters
}

// NewSharedWaiter returns a SharedWaiter. ready reports whether the memory has changed, and wake makes
// the caller of Begin check that. request asks the peer for a doorbell or, if on is false, no longer. After
// it has asked for one, it calls wake if the memory has changed. None of the three may block, or call methods of
// a SharedWaiter. They are called between Begin and End, and by these.
func NewSharedWaiter(ready func() bool, wake func(), request func(on bool)) *SharedWaiter {
	return &SharedWaiter{ready: ready, wake: wake, request: request, shared: &processWaiters}
}

// Begin is called after the caller has asked for a doorbell, before it blocks. From then on a goroutine
// that spins polls for it as well.
func (w *SharedWaiter) Begin() { w.shared.add(w) }

// End ends that. When it returns, no function of w is being called, nor will be.
func (w *SharedWaiter) End() { w.shared.remove(w) }

// processWaiters has the SharedWaiters of this process. Like the spin arbiter it has nothing that two
// users of the package could want to configure differently.
var processWaiters sharedWaiters

// maxShared bounds the SharedWaiters for which a spin polls. To poll for one takes some 20 ns, a wake-up 30
// to 50 µs.
const maxShared = 128

// sharedWaiters polls for SharedWaiters, on the goroutine that spins; at most one does so at a time.
type sharedWaiters struct {
	mu       sync.Mutex
	waiters  []*SharedWaiter // at most maxShared, those that have begun last, the oldest first
	spinning bool            // a goroutine polls for them, and no peer of theirs is asked for a doorbell
}

func (s *sharedWaiters) add(w *SharedWaiter) {
	s.mu.Lock()
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiters, w); i >= 0 {
		s.waiters = slices.Delete(s.waiters, i, i+1)
	}
}

// begin begins a spin that polls for all waiters, and returns how many there are. It reports false if there
// are none, or another goroutine does that; then end must not be called.
func (s *sharedWaiters) begin() (n int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spinning || len(s.waiters) == 0 {
		return 0, false
	}
	s.spinning = true
	for _, w := range s.waiters {
		w.request(false)
	}
	return len(s.waiters), true
}

// poll polls for each waiter until one is ready, wakes that, and reports whether there was one. It is
// called between begin and end.
func (s *sharedWaiters) poll() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, w := range s.waiters {
		if w.ready() {
			w.wake()
			s.waiters = slices.Delete(s.waiters, i, i+1)
			return true
		}
	}
	return false
}

// end ends the spin.
func (s *sharedWaiters) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spinning = false
	for _, w := range s.waiters {
		w.request(true)
	}
}
