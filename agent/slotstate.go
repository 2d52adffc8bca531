package agent

import "sync"

// slotState is whether a request has a slot. Several goroutines may wait on its
// behalf at once: the first one to do so gives the slot away, the last one to come
// back takes one again.
type slotState struct {
	mu       sync.Mutex
	shift    *shift // in which a Short handler runs, or what opens the request
	of       *slots // nil for one that runs without, or has returned
	held     bool
	away     int           // how many wait
	entering bool          // one of those who are back waits for a slot
	entered  chan struct{} // closed when it has waited; made by who wants to know
}

// begin says that the request runs in a slot of s.
func (t *slotState) begin(s *slots) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of, t.held = s, true
}

// inShift says that what is done for the request now is done in a shift, nil for none,
// and without a slot.
func (t *slotState) inShift(s *shift) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shift = s
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
	t.of, t.held, t.shift = nil, false, nil
	return held
}

// leaveShift is called before waiting, or seeing to anything else.
func (t *slotState) leaveShift() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shift.relieve()
}

// leave is called before waiting, and reports whether enter is to be called after it.
func (t *slotState) leave() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shift.relieve()
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

// enter is called when the wait is over. Of several who are back one waits for a slot:
// a second one would wait for the slot that the first has.
func (t *slotState) enter() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.away--
	for t.of != nil && t.away == 0 && !t.held {
		if t.entering {
			t.awaitEntered()
		} else {
			t.take()
		}
	}
}

// awaitEntered waits until the one who waits for a slot has done so. The caller holds mu,
// which is free meanwhile.
func (t *slotState) awaitEntered() {
	if t.entered == nil {
		t.entered = make(chan struct{})
	}
	entered := t.entered
	t.mu.Unlock()
	<-entered
	t.mu.Lock()
}

// take waits for a slot, and gives it back where the handler has returned, or waits again.
// The caller holds mu, which is free meanwhile.
func (t *slotState) take() {
	of := t.of
	t.entering = true
	t.mu.Unlock()
	of.enter()
	t.mu.Lock()
	t.entering = false
	if t.entered != nil {
		close(t.entered)
		t.entered = nil
	}
	if t.of == nil || t.away > 0 {
		of.leave()
		return
	}
	t.held = true
}
