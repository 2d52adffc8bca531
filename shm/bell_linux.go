package shm

import (
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// bell wakes one goroutine that sleeps, or will.
type bell chan struct{}

func newBell() bell { return make(bell, 1) }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// clear forgets a ring that was noticed by other means.
func (b bell) clear() {
	select {
	case <-b:
	default:
	}
}

// heard waits for the bell, so long at most, and reports whether it rang.
func (b bell) heard(most time.Duration) bool {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-b:
		return true
	case <-t.C:
		return false
	}
}

// waiter is how one half of a connection waits. Whatever ends a wait besides the
// peer's own doing is noted somewhere first and then rings the bell.
type waiter struct {
	bell  bell
	spin  *wait.Memory
	ready func() bool // the peer did something
	look  func() bool // it is time to get up

	// With a peer that rings: where, and by which bit, it sees that this half
	// sleeps. The word is nil with others.
	word *atomic.Uint32
	bit  uint32
}

func newWaiter(bell bell, spin *wait.Memory, bit uint32, ready func() bool) waiter {
	w := waiter{bell: bell, spin: spin, bit: bit, ready: ready}
	w.look = func() bool { return len(bell) > 0 || ready() }
	return w
}

// wait returns when the peer did something or the bell rang, and perhaps
// without a reason.
func (w *waiter) wait() {
	if w.word == nil { // the one who looks for tokens spins
		if !w.ready() {
			<-w.bell
		}
		return
	}
	if !w.spin.Find(w.look) {
		w.sleep()
	}
	w.bell.clear()
	if w.ready() {
		w.spin.Came()
	}
}

// sleep tells the peer and looks once more before it sleeps: either sees what
// the other did just then.
func (w *waiter) sleep() {
	step.Here()
	w.word.Or(w.bit)
	step.Here()
	if !w.look() {
		<-w.bell
	}
	step.Here()
	w.word.And(^w.bit)
}
