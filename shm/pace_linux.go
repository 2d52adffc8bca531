package shm

import "time"

// Pauses between two looks for tokens, while none come.
const (
	firstPause = 50 * time.Microsecond
	lastPause  = time.Millisecond
)

// pace says how soon to look again.
type pace struct {
	spin  time.Duration
	until time.Time // the end of the haste
	pause time.Duration
	timer *time.Timer
}

func newPace(spin time.Duration) *pace {
	p := &pace{spin: spin, timer: time.NewTimer(lastPause)}
	p.seen()
	return p
}

// seen begins a haste.
func (p *pace) seen() {
	p.until = time.Now().Add(p.spin)
	p.pause = firstPause
}

func (p *pace) hasty() bool { return time.Now().Before(p.until) }

// rest pauses, longer each time, until there is a nudge or it is time to quit.
func (p *pace) rest(nudge bell, quit <-chan struct{}) {
	p.timer.Reset(p.pause)
	p.pause = min(2*p.pause, lastPause)
	select {
	case <-p.timer.C:
	case <-nudge:
		p.seen()
	case <-quit:
	}
}
