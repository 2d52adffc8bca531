package mem

import "time"

// deadline is when the calls at one end of a ring give up. The lock of the ring
// protects it.
type deadline struct {
	at    time.Time // zero: never
	timer *time.Timer
}

func (d *deadline) expired() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// setReadDeadline bounds Read, also one that waits already.
func (r *ring) setReadDeadline(t time.Time) { r.setDeadline(&r.readBy, t) }

// setWriteDeadline bounds Write, also one that waits already.
func (r *ring) setWriteDeadline(t time.Time) { r.setDeadline(&r.writeBy, t) }

// setDeadline holds on to the clock that timers go by, whatever t was made
// from, so that what wakes then finds the time expired.
func (r *ring) setDeadline(d *deadline, t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
	d.at, d.timer = time.Time{}, nil
	if !t.IsZero() {
		left := time.Until(t)
		d.at = time.Now().Add(left)
		d.timer = time.AfterFunc(left, r.wake)
	}
	r.changed.Broadcast()
}

// wake takes the lock so that nobody is between looking and waiting.
func (r *ring) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed.Broadcast()
}
