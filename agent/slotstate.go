package agent

import "sync"

// slotState is whether a request has a slot. Several goroutines may wait on its
// behalf at once: the first one to do so gives the slot away, the last one to come
// back takes one again.
type slotState struct {
	mu   sync.Mutex
	of   *slots // nil for one that runs without, or has returned
	held bool
	away int // how many wait
}

// begin says that the request runs in a slot of s.
func (t *slotState) begin(s *slots) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of, t.held = s, true
}

// isAway reports whether somebody waits on behalf of the request.
func (t *slotState) isAway() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of != nil && t.away > 0
}

// end says that the handler has returned, and reports whether it had the slot.
func (t *slotState) end() (held bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	held = t.held
	t.of, t.held = nil, false
	return held
}

// leave is called before waiting, and reports whether enter is to be called after it.
func (t *slotState) leave() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		return false
	}
	t.away++
	if t.held {
		t.held = false
		t.of.leave()
	}
	return true
}

// enter is called when the wait is over.
func (t *slotState) enter() {
	t.mu.Lock()
	t.away--
	of := t.of
	needed := of != nil && t.away == 0 && !t.held
	t.mu.Unlock()
	if !needed {
		return
	}
	of.enter()
	if !t.keep() {
		of.leave()
	}
}

// keep holds on to a slot that was waited for. It reports false where the handler
// has returned, has one again, or waits again.
func (t *slotState) keep() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil || t.held || t.away > 0 {
		return false
	}
	t.held = true
	return true
}
