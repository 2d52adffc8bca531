package tensor

import (
	"slices"
	"time"
)

// idleMapping is memory that waits for its next use.
type idleMapping struct {
	*mapping
	since time.Time
}

// keep makes m idle, and the timer run that ends its idleness.
func (p *Pool) keep(m *mapping) {
	p.idle = append(p.idle, idleMapping{m, time.Now()})
	p.stats.Idle += len(m.data)
	if p.options.IdleLimit > 0 {
		p.shrinkIdle(p.options.IdleLimit)
	}
	if p.trimmer == nil {
		p.trimmer = time.AfterFunc(p.options.IdleTime, p.trimOld)
	}
}

// takeIdle removes the memory of that size that was idle for the shortest
// time, which caches know best; nil if there is none.
func (p *Pool) takeIdle(size int) *mapping {
	for i, m := range slices.Backward(p.idle) {
		if len(m.data) == size {
			p.idle = slices.Delete(p.idle, i, i+1)
			p.stats.Idle -= size
			return m.mapping
		}
	}
	return nil
}

// shrinkIdle gives back the longest idle memory until at most limit bytes are
// idle.
func (p *Pool) shrinkIdle(limit int) {
	n := 0
	for left := p.stats.Idle; left > limit; n++ {
		left -= len(p.idle[n].data)
	}
	p.discard(n)
}

// discard gives the first n idle mappings back to the system: the pages at
// once, the addresses when the collector finds them unreachable.
func (p *Pool) discard(n int) {
	for _, m := range p.idle[:n] {
		discardMemory(m.data)
		p.stats.Idle -= len(m.data)
		p.stats.Trimmed += len(m.data)
	}
	p.idle = slices.Delete(p.idle, 0, n)
}

// Trim gives all idle memory back to the system.
func (p *Pool) Trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.discard(len(p.idle))
}

// trimOld gives back what has been idle for too long, and comes back for the
// rest.
func (p *Pool) trimOld() {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(p.idle) && time.Since(p.idle[n].since) >= p.options.IdleTime {
		n++
	}
	p.discard(n)
	p.trimmer = nil
	if len(p.idle) > 0 {
		p.trimmer = time.AfterFunc(p.options.IdleTime-time.Since(p.idle[0].since), p.trimOld)
	}
}
