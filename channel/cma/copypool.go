package cma

import (
	"cmp"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// Sizes of copies in bytes. A small tensor is copied by the goroutine that received its description,
// because handing it over would take as long. Larger ones are copied in chunks; a chunk is also how
// long it takes to stop copying.
const (
	smallCopy = 128 << 10
	chunkSize = 2 << 20
)

// stallTimeout is how long other tasks wait for a chunk when the pool uses one worker. The memory of a
// peer that is swapped out, or held back, may take any time to read.
const stallTimeout = 50 * time.Millisecond

// copyTask is a tensor for a copyPool to copy. It owns no memory: that of dst and src must stay valid
// until finished is called or stop has returned true.
type copyTask struct {
	pid      int
	dst      device.Buffer
	src      []segment
	finished func(error) // called once, by a worker, unless stop has returned true

	// Guarded by the pool:
	next    int // offset in dst of the next chunk to copy
	running int // chunks being copied
	err     error
}

// copyPool is the copy workers of one end of a channel. They copy the tasks in turn, one chunk at a
// time: several workers copy a single large task, and a small task does not wait for large ones.
//
// A copy cannot be interrupted, and the peer's memory may block it for any time. Therefore each pool
// has one slot of its own, which other pools cannot occupy, and shares the others with them.
//
// A worker is started when there is a task and no other worker is idle, up to the number of slots.
type copyPool struct {
	slots chan struct{} // one token per running copy, shared by all pools of a factory
	own   chan struct{} // likewise, of this pool alone
	spawn func(func())
	copy  func(*reader, chunk) error

	arrived func(bytes int) // Link.Arrived

	mu            sync.Mutex
	work          sync.Cond // tasks have been added, or closed is set
	tasks         fifo.Queue[*copyTask]
	workers       int
	idle          int // workers that wait for a chunk, or are about to
	running       int // chunks taken by workers and not stalled
	copying       int // running chunks that have a slot
	epoch         int // incremented when all running chunks have stalled; they keep the earlier number
	tuner         tuner
	stallDetector stallDetector
	closed        bool
}

func newCopyPool(slots chan struct{}, spawn func(func())) *copyPool {
	c := &copyPool{slots: slots, own: make(chan struct{}, 1), spawn: spawn, copy: (*reader).readChunk}
	c.work.L = &c.mu
	c.stallDetector.init(c.checkStalled)
	return c
}

// start adds task j and wakes a worker. It does not block. The fields of j up to finished must be set,
// and j must not be in the pool. The caller must not change j until finished is called or stop has
// returned true.
func (c *copyPool) start(j *copyTask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j.next, j.running, j.err = 0, 0, nil
	c.tasks.Push(j)
	c.wakeWorker()
}

// stop ends task j early because of cause. It returns true if no chunk of j is being copied: the
// memory is not in use then, and finished will not be called. Otherwise finished has been called, or
// will be after the chunks that are being copied. stop does not wait for it.
func (c *copyPool) stop(j *copyTask, cause error) (idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j.err = cmp.Or(j.err, cause)
	return c.dropRemaining(j) && j.running == 0
}

// dropRemaining prevents chunks of j that no worker has taken from being copied, and reports whether
// there were any. The caller holds mu.
func (c *copyPool) dropRemaining(j *copyTask) bool {
	j.next = j.dst.Len()
	return c.tasks.Remove(func(other *copyTask) bool { return other == j })
}

// close makes the workers end as soon as no tasks are left. It does not wait for them. No task may be
// started later.
func (c *copyPool) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.work.Broadcast()
}

// runWorker copies chunks, and calls finished for tasks whose last chunk it has copied, until the pool
// is closed and has no tasks.
func (c *copyPool) runWorker() {
	var r reader
	for {
		p := c.nextChunk()
		if p.copyTask == nil {
			return
		}
		slot := c.acquireSlot()
		c.copyStarted(&p)
		start := time.Now()
		err := c.copy(&r, p)
		outcome, over := c.chunkDone(p, time.Since(start), err)
		if err == nil && c.arrived != nil {
			c.arrived(p.n)
		}
		<-slot // after chunkDone, which stops counting this copy
		if over {
			p.finished(outcome)
		}
		c.mu.Lock()
		c.idle++
		c.mu.Unlock()
	}
}

// acquireSlot blocks until one more copy may run, and returns the channel that holds the token for it.
// The caller must receive from this channel after the copy, which releases the slot.
func (c *copyPool) acquireSlot() chan struct{} {
	select {
	case c.own <- struct{}{}:
		return c.own
	case c.slots <- struct{}{}:
		return c.slots
	}
}

// chunk is a part of a task that one worker copies.
type chunk struct {
	*copyTask
	off, n     int
	epoch      int
	concurrent int // chunks being copied when it began, including itself
}

// readChunk copies chunk p to its destination. The error is a [*ReadError].
func (r *reader) readChunk(p chunk) error { return r.read(p.pid, p.dst, p.src, p.off, p.n) }

// nextChunk blocks until a worker may copy a chunk, and takes it. It returns a chunk whose copyTask is
// nil once the pool is closed and has no tasks. The calling worker must have been counted as idle.
func (c *copyPool) nextChunk() chunk {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.hasWork() {
		c.stallDetector.arm(c.tasks.Len() > 0)
		c.work.Wait()
	}
	c.idle--
	if c.tasks.Len() == 0 {
		return chunk{}
	}
	j := c.tasks.Pop()
	p := chunk{copyTask: j, off: j.next, n: min(chunkSize, j.dst.Len()-j.next), epoch: c.epoch}
	j.next += p.n
	j.running++
	c.running++
	if j.next < j.dst.Len() {
		c.tasks.Push(j)
	}
	c.tuner.countChunk()
	c.wakeWorker()
	return p
}

// wakeWorker lets one more worker copy, if there is work and the tuner allows it: it wakes an idle
// worker, or starts one if there are fewer workers than slots. If the tuner refuses and tasks wait, it
// arms the stall detector. Each worker that takes a chunk calls wakeWorker again, so that one call
// suffices for several tasks. The caller holds mu.
func (c *copyPool) wakeWorker() {
	switch {
	case !c.hasWork():
		c.stallDetector.arm(c.tasks.Len() > 0)
	case c.idle > 0:
		c.work.Signal()
	case c.tasks.Len() > 0 && c.workers < cap(c.slots)+cap(c.own):
		c.workers++
		c.idle++
		c.spawn(c.runWorker)
	}
}

// copyStarted counts the copy of p, for which the caller has acquired a slot, and sets p.concurrent.
// It does nothing if the running chunks have stalled since p was taken.
func (c *copyPool) copyStarted(p *chunk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.epoch == c.epoch {
		c.copying++
		p.concurrent = c.copying
	}
}

// checkStalled handles the expiry of the stall detector. If no chunk has ended since it was armed, the
// running chunks have stalled: they are not counted any more, so that other workers may copy.
func (c *copyPool) checkStalled() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stallDetector.expired() && c.tasks.Len() > 0 {
		c.epoch++
		c.running, c.copying = 0, 0
		c.wakeWorker()
	}
	c.stallDetector.arm(c.tasks.Len() > 0 && c.running > 0)
}

// hasWork reports whether an idle worker has something to do: to copy a chunk that the tuner allows,
// or to end because the pool is closed. The caller holds mu.
func (c *copyPool) hasWork() bool {
	if c.tasks.Len() == 0 {
		return c.closed
	}
	return c.tuner.allow(c.running)
}

// chunkDone records that the copy of p ended with err after the time took. After an error the remaining
// chunks of the task are not copied. If over is true, no chunks of the task are left: the caller must
// call finished with outcome, the first error of the task or nil.
func (c *copyPool) chunkDone(p chunk, took time.Duration, err error) (outcome error, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stallDetector.completed++
	if p.epoch == c.epoch {
		if c.copying == p.concurrent && p.n == chunkSize && err == nil {
			c.tuner.record(p.concurrent, p.n, took)
		}
		c.copying--
		c.running--
	}
	p.running--
	p.err = cmp.Or(p.err, err)
	if p.err != nil {
		c.dropRemaining(p.copyTask)
	}
	over = p.running == 0 && p.next == p.dst.Len()
	if c.closed {
		c.work.Broadcast()
	} else if over {
		c.wakeWorker() // this worker calls finished first
	}
	return p.err, over
}

// stallDetector detects that no copy has ended for stallTimeout while something waits for one to end.
// Its owner increments completed after each copy, and guards it with the owner's mutex.
type stallDetector struct {
	timer      *time.Timer
	armed      bool // the timer runs
	completed  int  // copies that have ended
	startCount int  // value of completed when it was armed
}

func (a *stallDetector) init(onExpiry func()) {
	a.timer = time.AfterFunc(time.Hour, onExpiry)
	a.timer.Stop()
}

// arm starts the timer if wanted is set and the timer is not running. The caller holds the owner's
// mutex.
func (a *stallDetector) arm(wanted bool) {
	if wanted && !a.armed {
		a.armed, a.startCount = true, a.completed
		a.timer.Reset(stallTimeout)
	}
}

// expired records that the timer has expired, and reports whether no copy has ended since arm. The
// function that was passed to init must call it first, with the owner's mutex held.
func (a *stallDetector) expired() bool {
	a.armed = false
	return a.startCount == a.completed
}
