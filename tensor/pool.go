package tensor

import (
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
)

// bigStorage is the size from which a Pool maps and recycles memory. Smaller
// storages come from the Go heap, which is good at them.
const bigStorage = 1 << 20

// PoolOptions are the settings of a Pool. The zero value is a pool without
// limits that gives idle memory back after a minute.
type PoolOptions struct {
	// Limit bounds the bytes in use and idle together; 0 is no limit. Alloc
	// fails with a *LimitError where storages in use leave no room.
	Limit int

	// IdleLimit bounds the bytes kept for the next use; 0 is no limit.
	IdleLimit int

	// IdleTime is how long memory is kept for the next use; 0 is a minute.
	IdleTime time.Duration

	// Growth is the number of bytes by which memory in use may grow before
	// the pool starts a garbage collection, which does not know of this
	// memory, to find storages that are unreachable; 0 is 256 MiB. More than
	// that, the memory in use may double, as the Go heap does.
	Growth int
}

// Pool is an Allocator for big tensors: memory off the Go heap, in huge pages
// where the system has them, used again and again. Storages below 1 MiB come
// from the Go heap and do not count.
//
// Memory comes back by Storage.Release or when the garbage collector finds the
// Storage unreachable. A Pool needs no Close: when it and its storages are
// unreachable, the memory is gone. All methods may be called from any
// goroutine.
type Pool struct {
	options PoolOptions

	mu         sync.Mutex
	idle       []idleMapping // the longest idle first
	trimmer    *time.Timer   // nil while nothing is idle
	returned   chan struct{} // closed when memory comes back; nil if nobody waits
	collectAt  int           // bytes in use that start the next collection
	collecting bool
	stats      PoolStats
}

// PoolStats counts what a Pool did. Bytes are those of big storages, rounded up
// to the pool's sizes.
type PoolStats struct {
	InUse       int // bytes of storages that are neither released nor collected
	Idle        int // bytes kept for the next use
	Mapped      int // storages in fresh memory
	Reused      int // storages in memory used before
	Released    int // storages that came back by Release or by the collector
	Trimmed     int // bytes given back to the system
	Collections int // garbage collections that the pool started
}

// NewPool makes a Pool.
func NewPool(options PoolOptions) *Pool {
	if options.IdleTime == 0 {
		options.IdleTime = time.Minute
	}
	if options.Growth == 0 {
		options.Growth = 256 << 20
	}
	return &Pool{options: options, collectAt: options.Growth}
}

// Stats returns what the pool did so far.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Alloc implements Allocator. It never waits. Where storages in use leave no
// room below the limit it starts a garbage collection and fails with a
// *LimitError; a *SizeError says that the system has no memory.
func (p *Pool) Alloc(size int) (*Storage, error) {
	if err := checkSize(size); err != nil {
		return nil, err
	}
	if size < bigStorage {
		return heapStorage(size), nil
	}
	m, err := p.take(sizeClass(size))
	if err != nil {
		return nil, err
	}
	return p.lend(m, size)
}

// lend makes a storage of memory that was taken.
func (p *Pool) lend(m *mapping, size int) (*Storage, error) {
	// The storage keeps this function, and with it m, also after Release, so
	// that nothing is unmapped under a tensor that somebody kept.
	return NewStorage(device.Bytes(m.data[:size:size]), func() { p.put(m) })
}

// take finds idle memory of that size, or room below the limit for fresh
// memory.
func (p *Pool) take(size int) (*mapping, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.InUse += size
	p.pace()
	if m := p.takeIdle(size); m != nil {
		p.stats.Reused++
		return m, nil
	}
	m, err := p.takeFresh(size)
	if err != nil {
		p.stats.InUse -= size
		return nil, err
	}
	p.stats.Mapped++
	return m, nil
}

// takeFresh maps memory that take has counted as in use already.
func (p *Pool) takeFresh(size int) (*mapping, error) {
	if limit := p.options.Limit; limit > 0 {
		if p.stats.InUse > limit {
			p.collect()
			return nil, &LimitError{Size: size, InUse: p.stats.InUse - size, Limit: limit}
		}
		p.shrinkIdle(limit - p.stats.InUse)
	}
	return newMapping(size)
}

// put takes back the memory of a storage.
func (p *Pool) put(m *mapping) {
	invariants.Scribble(m.data)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.InUse -= len(m.data)
	p.stats.Released++
	p.unpace()
	p.keep(m)
	if p.returned != nil {
		close(p.returned)
		p.returned = nil
	}
}
