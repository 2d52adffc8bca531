package tensor

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
)

// bigStorage is the size in bytes from which a Pool maps and reuses memory. Smaller storages are
// allocated from the Go heap.
const bigStorage = 1 << 20

// PoolOptions are the options of a Pool. The zero value is a pool without limits that returns idle
// memory to the system after a minute.
type PoolOptions struct {
	// Limit bounds the total of bytes in use and idle; 0 is no limit. Alloc fails with a *LimitError if
	// the storages in use would exceed it.
	Limit int

	// IdleLimit bounds the idle bytes, which are kept for reuse; 0 is no limit.
	IdleLimit int

	// IdleTime is how long idle memory is kept for reuse; 0 is a minute.
	IdleTime time.Duration

	// Growth is the number of bytes by which memory in use may grow before the pool starts a garbage
	// collection, to find unreachable storages; the collector's own pacing does not consider this
	// memory. 0 is 256 MiB. Once more memory is in use it may double between collections, as the Go
	// heap does.
	Growth int
}

// Pool is an Allocator for large tensors: memory off the Go heap, in huge pages if the system has them,
// which is reused. Storages below 1 MiB are allocated from the Go heap and are not counted.
//
// Memory returns to the pool by Storage.Release, or when the garbage collector finds the Storage
// unreachable. A Pool needs no Close: its memory is freed when it and its storages are unreachable. All
// methods may be called from any goroutine.
type Pool struct {
	options PoolOptions

	mu         sync.Mutex
	idle       []idleMapping // in the order in which they became idle
	trimmer    *time.Timer   // nil while there is no idle memory
	returned   chan struct{} // closed when memory is returned; nil without waiting callers
	collectAt  int           // bytes in use at which the next collection starts
	collecting bool
	stats      PoolStats
}

// PoolStats are the statistics of a Pool. They count only storages of 1 MiB or more, with their sizes
// in bytes rounded up to size classes.
type PoolStats struct {
	InUse       int // bytes of storages that are neither released nor collected
	Idle        int // bytes kept for reuse
	Mapped      int // storages in newly mapped memory
	Reused      int // storages in reused memory
	Released    int // storages returned by Release or by the collector
	Trimmed     int // bytes returned to the system
	Collections int // garbage collections started by the pool
}

// NewPool returns a Pool that holds no memory yet. Fields of options that are 0 have the defaults
// that PoolOptions describes. A Pool need not be closed.
func NewPool(options PoolOptions) *Pool {
	if options.IdleTime == 0 {
		options.IdleTime = time.Minute
	}
	if options.Growth == 0 {
		options.Growth = 256 << 20
	}
	return &Pool{options: options, collectAt: options.Growth}
}

// Stats returns a copy of the pool's present statistics.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Alloc returns a storage of size bytes, as Allocator describes. It does not wait for memory in
// use. A storage of less than 1 MiB is zeroed memory of the Go heap, which the pool's limit and
// statistics do not count. A larger one is reused or newly mapped memory with undefined contents,
// which returns to the pool when the storage is released or becomes unreachable.
//
// If the larger storages in use would exceed PoolOptions.Limit, Alloc starts a garbage collection
// and returns a *LimitError. If size is negative or impossibly large, or the system has no memory,
// the error is a *SizeError.
func (p *Pool) Alloc(size int) (*Storage, error) {
	if err := checkSize(size); err != nil {
		return nil, err
	}
	if size < bigStorage {
		return heapStorage(size), nil
	}
	m, err := p.acquire(sizeClass(size))
	if err != nil {
		return nil, err
	}
	// The storage retains this function, and thereby m, even after Release, so that memory is not
	// unmapped while a tensor refers to it.
	return NewStorage(device.Bytes(m.data[:size:size]), func() { p.put(m) })
}

// acquire returns idle memory of exactly size bytes, or maps new memory if there is none, and
// counts it as in use. size must be a size class. If enough memory has come into use since the last
// garbage collection, acquire starts one. The error is a *LimitError if the limit is exceeded, or a
// *SizeError if the system has no memory. acquire locks p.mu.
func (p *Pool) acquire(size int) (*mapping, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.InUse += size
	if p.stats.InUse >= p.collectAt {
		p.collectAt = p.stats.InUse + max(p.stats.InUse, p.options.Growth)
		p.collect()
	}
	if m := p.takeIdle(size); m != nil {
		p.stats.Reused++
		return m, nil
	}
	m, err := p.mapFresh(size)
	if err != nil {
		p.stats.InUse -= size
		return nil, err
	}
	p.stats.Mapped++
	return m, nil
}

// mapFresh maps and returns size bytes of new memory, which the caller has already counted as in
// use. It discards idle memory if otherwise memory in use and idle memory together would exceed the
// limit. If the memory in use alone exceeds the limit, it starts a garbage collection and returns a
// *LimitError. If the system has no memory the error is a *SizeError. The caller holds p.mu.
func (p *Pool) mapFresh(size int) (*mapping, error) {
	if limit := p.options.Limit; limit > 0 {
		if p.stats.InUse > limit {
			p.collect()
			return nil, &LimitError{Size: size, InUse: p.stats.InUse - size, Limit: limit}
		}
		p.shrinkIdle(limit - p.stats.InUse)
	}
	return newMapping(size)
}

// put returns m, the memory of a storage that was released or has become unreachable, to the pool
// as idle memory. If more than IdleLimit bytes are idle then, the memory that is idle longest is
// discarded. put starts the timer that trims idle memory, and wakes callers of AllocWait. It locks
// p.mu.
func (p *Pool) put(m *mapping) {
	invariants.Scribble(m.data)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.InUse -= len(m.data)
	p.stats.Released++
	p.collectAt = min(p.collectAt, p.stats.InUse+max(p.stats.InUse, p.options.Growth))
	p.idle = append(p.idle, idleMapping{m, time.Now()})
	p.stats.Idle += len(m.data)
	if p.options.IdleLimit > 0 {
		p.shrinkIdle(p.options.IdleLimit)
	}
	if p.trimmer == nil {
		p.trimmer = time.AfterFunc(p.options.IdleTime, p.trimOld)
	}
	if p.returned != nil {
		close(p.returned)
		p.returned = nil
	}
}

// idleMapping is memory that is kept for reuse, and the time at which it became idle.
type idleMapping struct {
	*mapping
	since time.Time
}

// takeIdle removes and returns the idle memory of exactly size bytes that was used last, which is
// most likely in the processor's cache. It returns nil if no idle memory has that size. The caller
// holds p.mu.
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

// shrinkIdle discards idle memory, the longest idle first, until at most limit bytes are idle.
// limit must not be negative. The caller holds p.mu.
func (p *Pool) shrinkIdle(limit int) {
	n := 0
	for left := p.stats.Idle; left > limit; n++ {
		left -= len(p.idle[n].data)
	}
	p.discard(n)
}

// discard removes the n longest idle mappings from the pool. Their memory pages return to the
// system at once, and their addresses are unmapped after the garbage collector has found the
// mappings unreachable. The caller holds p.mu.
func (p *Pool) discard(n int) {
	for _, m := range p.idle[:n] {
		discardMemory(m.data)
		p.stats.Idle -= len(m.data)
		p.stats.Trimmed += len(m.data)
	}
	p.idle = slices.Delete(p.idle, 0, n)
}

// Trim returns all idle memory of the pool to the system. Memory of storages in use is not
// affected.
func (p *Pool) Trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.discard(len(p.idle))
}

// trimOld returns memory to the system that has been idle for at least IdleTime. If other memory is
// still idle it starts the timer again for that. The timer calls trimOld, which locks p.mu.
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

// AllocWait returns a storage as Alloc does, but where Alloc would fail with a *LimitError it waits
// until enough memory has returned to the pool. While it waits it tries again, and thereby starts
// garbage collections, at increasing intervals of at most a second. If ctx ends during the wait it
// returns ctx.Err(). If size alone, rounded up to a size class, exceeds the limit, it returns a
// *LimitError at once. It returns any other error of Alloc at once too.
func (p *Pool) AllocWait(ctx context.Context, size int) (*Storage, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		returned := p.memoryReturned()
		s, err := p.Alloc(size)
		limit, full := errors.AsType[*LimitError](err)
		if !full || limit.Size > limit.Limit {
			return s, err
		}
		retry := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			retry.Stop()
			return nil, ctx.Err()
		case <-returned:
		case <-retry.C:
		}
		retry.Stop()
	}
}

// memoryReturned returns a Go channel that is closed the next time that memory returns to the pool.
// It locks p.mu.
func (p *Pool) memoryReturned() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.returned == nil {
		p.returned = make(chan struct{})
	}
	return p.returned
}

// collect starts a garbage collection on another goroutine and does not wait for it. If a
// collection that the pool started is still running, collect does nothing. The caller holds p.mu.
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
