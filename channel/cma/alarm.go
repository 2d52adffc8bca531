package cma

import "time"

// alarm tells when no copy has ended for stuckAfter while somebody waits for that. It is
// guarded by who has it.
type alarm struct {
	timer    *time.Timer
	on       bool // the timer runs
	progress int  // copies that have ended
	seen     int  // of them, when it was set
}

func (a *alarm) init(look func()) {
	a.timer = time.AfterFunc(time.Hour, look)
	a.timer.Stop()
}

// set begins to wait if somebody does, and the alarm does not yet.
func (a *alarm) set(wanted bool) {
	if wanted && !a.on {
		a.on, a.seen = true, a.progress
		a.timer.Reset(stuckAfter)
	}
}

// rang takes note that the timer ran out, and reports whether no copy has ended
// meanwhile.
func (a *alarm) rang() bool {
	a.on = false
	return a.seen == a.progress
}
