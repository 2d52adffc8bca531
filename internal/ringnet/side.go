package ringnet

import (
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// side is one direction of a stream at this end: who calls and who waits.
type side struct {
	turn     sync.Mutex    // one call at a time
	wake     chan struct{} // has a token when something may have changed
	deadline deadline
	looker   *wait.Memory
	changed  func() bool // for who has the turn: something has
}

func (s *side) init(looker *wait.Memory, changed func() bool) {
	s.wake = make(chan struct{}, 1)
	s.deadline.poke = s.poke
	s.looker, s.changed = looker, changed
}

// poke wakes who waits, or who is about to.
func (s *side) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// await returns when something has changed, or earlier. The caller has the turn.
// asleep is where the peer looks whether it has to ring.
func (s *side) await(asleep *atomic.Uint32) {
	if !s.looker.Find(s.changed) {
		s.sleep(asleep)
	}
}

// sleep is await without looking for long before.
func (s *side) sleep(asleep *atomic.Uint32) {
	step.Here()
	asleep.Store(1)
	step.Here()
	if !s.changed() {
		<-s.wake
	}
	step.Here()
	asleep.Store(0)
}
