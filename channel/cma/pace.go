package cma

import "time"

// How often a crew looks whether one worker more, or one less, would do: for some
// chunks out of every many.
const (
	tryEvery = 128
	tryFor   = 4
)

// recent is how many chunks a mean is of: few enough for two looks to change it. What
// memory delivers changes as the pages do, and with what else the machine does.
const recent = 6

// pace tells how many workers of a crew are worth their processors. Where memory
// is in small pages the system spends its time on pages, and two copy nearly twice
// as much as one; in huge pages one may take all that the memory delivers, and a
// second one would only wait for it, on a processor that others need.
//
// The zero value begins with one, then lets everybody work, and learns.
type pace struct {
	rates []rate // of all together, while k+1 copy
	turns int
}

// rate is a running mean in bytes per nanosecond.
type rate struct {
	mean float64
	n    int // how many it is of, as far as that matters
}

func (r *rate) note(seen float64) {
	r.n = min(r.n+1, recent)
	r.mean += (seen - r.mean) / float64(r.n)
}

// note learns from a chunk of n bytes that one of k workers copied.
func (p *pace) note(k, n int, took time.Duration) {
	for len(p.rates) < k {
		p.rates = append(p.rates, rate{})
	}
	p.rates[k-1].note(float64(k) * float64(n) / float64(max(took, 1)))
}

// turn counts a chunk.
func (p *pace) turn() { p.turns++ }

// another reports whether one more should copy beside k that do.
func (p *pace) another(k int) bool {
	trying := p.turns%tryEvery < tryFor
	return k == 0 || p.worth(k) != trying
}

// worth reports whether one more beside k adds four fifths of what one alone copies.
func (p *pace) worth(k int) bool {
	if k >= len(p.rates) {
		return true
	}
	alone, before, after := p.rates[0], p.rates[k-1], p.rates[k]
	return alone.n == 0 || before.n == 0 || after.n == 0 || after.mean-before.mean >= alone.mean*4/5
}
