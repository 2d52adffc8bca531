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

// maxTogether is the maximum number of small tasks that a worker copies together, by one system call.
const maxTogether = 64

// stallTimeout is how long other tasks wait for a chunk when the pool uses one worker. The memory of a
// peer that is swapped out, or held back, may take any time to read.
const stallTimeout = 50 * time.Millisecond

// copyTask is a tensor for a copyPool to copy. It owns no memory: that of dst and src must stay valid
// until finished is called or stop has returned true.
type copyTask struct {
	pid int
	dst device.Buffer
	src []segment

	// finished is called once, by a worker, unless stop has returned true. It may use the worker's
	// reader until it returns.
	finished func(*reader, error)

	// Guarded by the pool:
	next    int // offset in dst of the next chunk to copy
	running int // chunks being copied
	err     error
}

// copyPool is the copy workers of one end of a channel. They copy the tasks in turn, one chunk at a
// time: several workers copy a single large task, and a small task does not wait for large ones.
//
// A copy cannot be interrupted, and the peer's memory may block it indefinitely. Therefore each
// pool has one slot that other pools cannot occupy; it shares all other slots with them.
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

// start queues task j to be copied by the workers, and wakes or starts a worker if one more may
// copy. It does not block. The caller must have set the fields pid, dst, src and finished of j, and
// j must not be in the pool. The pool retains j, and the caller must not change it, until finished
// is called or stop has returned true. finished gets the first error of the task, or nil.
func (c *copyPool) start(j *copyTask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j.next, j.running, j.err = 0, 0, nil
	c.tasks.Push(j)
	c.wakeWorker()
}

// stop ends task j early because of cause, without waiting. If j is queued and no chunk of j is
// being copied, it returns true: the pool does not use the memory of j any more and will not call
// finished. Otherwise it returns false: finished has been called, or will be when the chunks that
// are being copied have ended. If the last of these ends after stop, finished gets the error of a
// copy of j that failed before stop, or else cause. The caller must not call stop again for j after
// it returned true.
func (c *copyPool) stop(j *copyTask, cause error) (idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j.err = cmp.Or(j.err, cause)
	return c.dropRemaining(j) && j.running == 0
}

// dropRemaining removes j from the queued tasks and marks it as having no further chunks, so that
// only the chunks already taken by workers are copied. It reports whether j was queued. The caller
// holds mu.
func (c *copyPool) dropRemaining(j *copyTask) bool {
	j.next = j.dst.Len()
	return c.tasks.Remove(func(other *copyTask) bool { return other == j })
}

// close makes the workers end as soon as no tasks are queued. It does not wait for them. The caller
// must not call start later.
func (c *copyPool) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.work.Broadcast()
}

// runWorker copies chunks until the pool is closed and has no tasks. After each successful copy it
// calls c.arrived, if not nil, with the number of bytes. After the last chunk of a task it calls
// the task's finished function. It is the function of a worker's goroutine.
func (c *copyPool) runWorker() {
	var r reader
	var p chunk
	var ended []endedTask
	for {
		p = c.nextChunk(p.others)
		if p.copyTask == nil {
			return
		}
		slot := c.acquireSlot()
		c.copyStarted(&p)
		start := time.Now()
		err := c.copyChunk(&r, &p)
		took := time.Since(start)
		if err == nil && c.arrived != nil {
			c.arrived(p.size())
		}
		ended = c.chunkDone(p, took, err, ended[:0])
		<-slot // after chunkDone, which stops counting this copy
		for _, j := range ended {
			j.finished(&r, j.outcome)
		}
		clear(ended)
		c.mu.Lock()
		c.idle++
		c.mu.Unlock()
	}
}

// acquireSlot blocks until one more copy may run. It puts a token for this copy into c.own or
// c.slots, and returns that channel. The caller must receive from it after the copy, which releases
// the slot.
func (c *copyPool) acquireSlot() chan struct{} {
	select {
	case c.own <- struct{}{}:
		return c.own
	case c.slots <- struct{}{}:
		return c.slots
	}
}

// chunk is a part of a task that one worker copies, or a small task with others that are copied
// together with it.
type chunk struct {
	*copyTask
	off, n     int // of the part of copyTask
	others     []endedTask
	epoch      int
	concurrent int // chunks being copied when it began, including itself
}

// endedTask is a task and the error with which its copy has ended.
type endedTask struct {
	*copyTask
	outcome error
}

// size returns the number of bytes of all tasks that p has.
func (p *chunk) size() int {
	n := p.n
	for _, j := range p.others {
		n += j.dst.Len()
	}
	return n
}

// copyChunk copies the bytes of chunk p and returns the error of its first task. It sets the errors
// of the others. If the copy of several tasks fails, perhaps because one was revoked, it copies each
// of them again.
func (c *copyPool) copyChunk(r *reader, p *chunk) error {
	err := c.copy(r, *p)
	if err == nil || len(p.others) == 0 {
		return err
	}
	for i := range p.others {
		j := &p.others[i]
		j.outcome = c.copy(r, chunk{copyTask: j.copyTask, n: j.dst.Len()})
	}
	return c.copy(r, chunk{copyTask: p.copyTask, n: p.n})
}

// takeOthers takes the tasks that are to be copied together with p, a whole task: those that follow
// in the queue, have the same process, and fit into a chunk with p. The caller holds mu.
func (c *copyPool) takeOthers(p *chunk) {
	left := chunkSize - p.n
	for c.tasks.Len() > 0 && len(p.others) < maxTogether-1 {
		j := c.tasks.Front()
		if j.next > 0 || j.pid != p.pid || j.dst.Len() > left {
			return
		}
		left -= j.dst.Len()
		j.next = j.dst.Len()
		j.running++
		p.others = append(p.others, endedTask{copyTask: c.tasks.Pop()})
	}
}

// nextChunk blocks until a worker may copy a chunk, takes the next chunk of the oldest task, or
// several small tasks, and wakes or starts another worker if one more may copy. If the pool is
// closed and has no tasks, it returns a chunk whose copyTask is nil. The caller must be counted in
// c.idle, and is not counted any more when nextChunk returns. The chunk uses the memory of others.
func (c *copyPool) nextChunk(others []endedTask) chunk {
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
	p := chunk{copyTask: j, off: j.next, n: min(chunkSize, j.dst.Len()-j.next), others: others[:0], epoch: c.epoch}
	j.next += p.n
	j.running++
	c.running++
	if j.next < j.dst.Len() {
		c.tasks.Push(j)
	} else if p.off == 0 {
		c.takeOthers(&p)
	}
	c.tuner.countChunk()
	c.wakeWorker()
	return p
}

// wakeWorker wakes an idle worker if there is something for it to do: to copy a chunk, if the tuner
// allows one more copy, or to end. If no worker is idle and tasks wait, it starts one, unless there
// are as many workers as slots. If tasks wait and the tuner allows no further copy, it starts the
// timer of the stall detector. Each worker that takes a chunk calls wakeWorker again, so that one
// call suffices for several tasks. The caller holds mu.
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

// copyStarted counts the copy of chunk p in c.copying and sets p.concurrent to that count. The
// caller has acquired a slot for the copy. If the pool has found the running chunks stalled since p
// was taken, copyStarted does nothing.
func (c *copyPool) copyStarted(p *chunk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.epoch == c.epoch {
		c.copying++
		p.concurrent = c.copying
	}
}

// checkStalled is called when the timer of the stall detector expires. If tasks wait and no chunk
// has ended since the timer was started, the running chunks have stalled: checkStalled stops
// counting them and wakes or starts a worker, which copies other chunks. It starts the timer again
// if tasks still wait while chunks are running.
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

// hasWork reports whether an idle worker has something to do: to copy a chunk of a queued task,
// which the tuner must allow, or to end because the pool is closed and has no tasks. The caller
// holds mu.
func (c *copyPool) hasWork() bool {
	if c.tasks.Len() == 0 {
		return c.closed
	}
	return c.tuner.allow(c.running)
}

// chunkDone records that the copy of chunk p has ended, and that it took the time took. err is the
// error of the first task of p; the errors of its other tasks are in p.others. After an error it
// drops the chunks of the task that no worker has taken. It appends to ended the tasks of which no
// chunk is queued or being copied, each with its first error, and returns the extended slice: the
// caller must then call their finished functions. If the pool is closed chunkDone wakes all
// workers, and otherwise one after the last chunk of a task.
func (c *copyPool) chunkDone(p chunk, took time.Duration, err error, ended []endedTask) []endedTask {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stallDetector.completed++
	if p.epoch == c.epoch {
		if n := p.size(); c.copying == p.concurrent && n == chunkSize && err == nil {
			c.tuner.record(p.concurrent, n, took)
		}
		c.copying--
		c.running--
	}
	ended = c.taskDone(p.copyTask, err, ended)
	for _, j := range p.others {
		ended = c.taskDone(j.copyTask, j.outcome, ended)
	}
	clear(p.others)
	if c.closed {
		c.work.Broadcast()
	} else if len(ended) > 0 {
		c.wakeWorker() // this worker calls finished first
	}
	return ended
}

// taskDone records that the copy of a chunk of task j has ended with err. After an error it drops
// the chunks of j that no worker has taken. If no chunk of j is queued or being copied any more, it
// appends j with its first error to ended. It returns ended or the extended slice. The caller holds
// mu.
func (c *copyPool) taskDone(j *copyTask, err error, ended []endedTask) []endedTask {
	j.running--
	j.err = cmp.Or(j.err, err)
	if j.err != nil {
		c.dropRemaining(j)
	}
	if j.running == 0 && j.next == j.dst.Len() {
		ended = append(ended, endedTask{j, j.err})
	}
	return ended
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

// arm starts the timer, which expires after stallTimeout, if wanted is true and the timer is not
// running; otherwise it does nothing. The caller holds the owner's mutex.
func (a *stallDetector) arm(wanted bool) {
	if wanted && !a.armed {
		a.armed, a.startCount = true, a.completed
		a.timer.Reset(stallTimeout)
	}
}

// expired marks the timer as not running, and reports whether no copy has ended since arm started
// it. The function that was passed to init must call expired first, with the owner's mutex held.
func (a *stallDetector) expired() bool {
	a.armed = false
	return a.startCount == a.completed
}
