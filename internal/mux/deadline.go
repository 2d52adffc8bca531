package mux

import (
	"sync"
	"time"
)

// deadline ends waiting at a time that may be set at any time, as net.Conn has it.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	over  chan struct{} // closed when the time has come
}

func newDeadline() *deadline { return &deadline{over: make(chan struct{})} }

// set changes the time. The zero time is never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if isClosed(d.over) {
		d.over = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		close(d.over)
		return
	}
	var own *time.Timer
	own = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.timer == own { // it may have been late to be stopped
			close(d.over)
			d.timer = nil
		}
	})
	d.timer = own
}

// wait returns what is closed when the time has come. Whoever waits while the time is
// changed from a past one waits for the past one.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
