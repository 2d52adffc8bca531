package ringnet

import (
	"sync"
	"sync/atomic"
	"time"
)

// deadline is when the calls of one direction of a stream give up.
type deadline struct {
	passed atomic.Bool
	poke   func() // wakes who waits

	mu    sync.Mutex
	timer *time.Timer
	turn  int // of set, so that a timer that is stopped too late does nothing
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.turn++
	left := time.Until(t)
	d.passed.Store(!t.IsZero() && left <= 0)
	if !t.IsZero() && left > 0 {
		turn := d.turn
		d.timer = time.AfterFunc(left, func() { d.expire(turn) })
	}
	d.poke()
}

func (d *deadline) expire(turn int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.turn == turn {
		d.passed.Store(true)
		d.poke()
	}
}

// stop ends the timer.
func (d *deadline) stop() { d.set(time.Time{}) }
