// Package deadline implements the deadlines of a net.Conn that does not rest on a socket. They work
// in the virtual time of testing/synctest.
package deadline

import (
	"sync"
	"sync/atomic"
	"time"
)

// Deadline is the deadline of the reads or of the writes of a connection. It may be set at any time,
// also while calls are blocked. A blocked call waits for Done, or is woken by Wake and checks Passed.
// The zero value is a deadline that is not set. The methods may be called concurrently.
type Deadline struct {
	// Wake, if not nil, is called when the deadline passes and after each Set. It must not block. It
	// is set before the first use.
	Wake func()

	passed atomic.Bool

	mu      sync.Mutex
	timer   *time.Timer   // nil unless the deadline is in the future
	done    chan struct{} // nil until Done is called; closed when the deadline has passed
	stopped bool
}

// Set changes the deadline to t, or to none if t is zero, and then calls Wake if that is not nil.
// If t is neither zero nor in the future, the deadline has passed when Wake is called. After Stop,
// Set treats every t as zero.
func (d *Deadline) Set(t time.Time) {
	d.mu.Lock()
	d.stopTimer()
	left := time.Until(t)
	d.setPassed(!d.stopped && !t.IsZero() && left <= 0)
	if !d.stopped && left > 0 {
		var timer *time.Timer
		timer = time.AfterFunc(left, func() {
			d.mu.Lock()
			current := d.timer == timer // not stopped too late
			if current {
				d.timer = nil
				d.setPassed(true)
			}
			d.mu.Unlock()
			if current && d.Wake != nil {
				d.Wake()
			}
		})
		d.timer = timer
	}
	d.mu.Unlock()
	if d.Wake != nil {
		d.Wake()
	}
}

// Stop ends the deadline and its timer: it does not pass any more, whatever is given to Set. If the
// deadline has passed before, it stays passed until the next Set. Stop does not call Wake.
func (d *Deadline) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	d.stopTimer()
}

// Passed reports whether the deadline has passed.
func (d *Deadline) Passed() bool { return d.passed.Load() }

// Done returns a channel that is closed when the deadline passes. If Set changes the deadline
// before, the channel follows the new deadline. Once the channel is closed it stays closed; if Set
// then ends or postpones the deadline, Done returns a new channel.
func (d *Deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done == nil {
		d.done = make(chan struct{})
		if d.passed.Load() {
			close(d.done)
		}
	}
	return d.done
}

// setPassed sets the state that Passed reports. If the deadline passes by that, setPassed closes
// the channel that Done has returned. If a passed deadline becomes one that has not passed, Done
// returns a new channel from then on. The caller holds mu.
func (d *Deadline) setPassed(passed bool) {
	if d.passed.Swap(passed) == passed || d.done == nil {
		return
	}
	if passed {
		close(d.done)
	} else {
		d.done = nil
	}
}

// stopTimer stops the timer, if there is one. If the timer has fired already, its function has no
// effect. The caller holds mu.
func (d *Deadline) stopTimer() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
