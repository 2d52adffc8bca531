package wait

import (
	"runtime"
	"time"
)

// socketSpinner is the spinner of one goroutine that waits for a socket.
type socketSpinner struct {
	spinner
}

func (s *socketSpinner) init(bound time.Duration, r *registration) {
	epoch := time.Now()
	s.spinner = spinner{
		bound:        bound,
		crowd:        &crowd{},
		registration: r,
		busy:         busy,
		now:          func() time.Duration { return time.Since(epoch) },
		yield:        s.yieldAll,
		stop:         s.otherHasInput,
	}
}

// otherHasInput reports whether the socket of the other reader with arrivals has input, or cannot be asked. It is
// asked only in a process with one processor: with more, yieldAll does not yield to other processes, and a spin
// for one of two sockets would keep the processor from them.
func (s *socketSpinner) otherHasInput() bool {
	fd, found := s.registration.companion()
	switch {
	case !found:
		return false
	case fd == 0 || runtime.GOMAXPROCS(0) > 1:
		return true
	}
	if !hasInput(uintptr(fd)) {
		return false
	}
	s.backoff.succeeded() // it has waited for either
	return true
}

// goschedInCrowd is the number of yields to threads for each one to goroutines if the machine is crowded.
const goschedInCrowd = 64

// yieldAll yields to other goroutines, or to other threads if the machine is crowded, and to both if the process
// has one processor. On a crowded machine it yields to goroutines now and then, and if GoroutineStarted was called.
func (s *socketSpinner) yieldAll() {
	single := runtime.GOMAXPROCS(0) == 1
	s.crowd.polls++
	if single || !s.crowd.yielding || s.crowd.polls%goschedInCrowd == 0 || s.registration.arbiter.takeStarted() {
		runtime.Gosched()
	}
	if single || s.crowd.yielding {
		yieldThread()
	}
}
