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
		registration: r,
		busy:         busy,
		now:          func() time.Duration { return time.Since(epoch) },
		yield:        yieldAll,
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

// yieldAll yields to other goroutines, and to other threads if the process has one processor.
func yieldAll() {
	runtime.Gosched()
	if runtime.GOMAXPROCS(0) == 1 {
		yieldThread()
	}
}
