package shm

import (
	"sync"
	"sync/atomic"
	"time"
)

// deadline is when the calls of one half give up.
type deadline struct {
	at atomic.Pointer[time.Time] // nil: never

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

func (d *deadline) expired() bool {
	at := d.at.Load()
	return at != nil && !time.Now().Before(*at)
}

// set holds also for a call that waits already, whose bell is b. The zero time
// stands for never.
func (d *deadline) set(t time.Time, b bell) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
	d.at.Store(nil)
	if !t.IsZero() && !d.stopped {
		left := time.Until(t)
		at := time.Now().Add(left) // by the clock of timers
		d.at.Store(&at)
		d.timer = time.AfterFunc(left, b.ring)
	}
	b.ring()
}

func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	if d.timer != nil {
		d.timer.Stop()
	}
}
