package tensor

import (
	"context"
	"errors"
	"runtime"
	"time"
)

// AllocWait is Alloc that waits for memory below the limit until ctx ends. It
// collects garbage while it waits, ever more rarely. A size above the limit is
// a *LimitError at once.
func (p *Pool) AllocWait(ctx context.Context, size int) (*Storage, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		returned := p.watch()
		s, err := p.Alloc(size)
		limit, full := errors.AsType[*LimitError](err)
		if !full || limit.Size > limit.Limit {
			return s, err
		}
		again := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			again.Stop()
			return nil, ctx.Err()
		case <-returned:
		case <-again.C:
		}
		again.Stop()
	}
}

// watch returns a channel that is closed when memory comes back.
func (p *Pool) watch() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.returned == nil {
		p.returned = make(chan struct{})
	}
	return p.returned
}

// pace starts a collection where memory in use has grown enough.
func (p *Pool) pace() {
	if p.stats.InUse >= p.collectAt {
		p.collectAt = p.stats.InUse + max(p.stats.InUse, p.options.Growth)
		p.collect()
	}
}

// unpace lets the next collection come earlier when memory comes back.
func (p *Pool) unpace() {
	p.collectAt = min(p.collectAt, p.stats.InUse+max(p.stats.InUse, p.options.Growth))
}

// collect starts a garbage collection unless the pool has started one that is
// still running.
func (p *Pool) collect() {
	if p.collecting {
		return
	}
	p.collecting = true
	p.stats.Collections++
	go func() {
		runtime.GC()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.collecting = false
	}()
}
