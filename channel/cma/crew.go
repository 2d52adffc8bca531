package cma

import (
	"cmp"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// Sizes of copies in bytes. A small tensor is copied by the goroutine that
// learns of it: handing it over takes as long. Larger ones are cut into chunks,
// which is also how long somebody waits who wants the copying to end.
const (
	smallCopy = 128 << 10
	chunk     = 2 << 20
)

// stuckAfter is how long others wait for a chunk, where one worker is enough: the memory
// of a peer that is swapped out, or held back, may take as long as it likes.
const stuckAfter = 50 * time.Millisecond

// job is a tensor that a crew copies.
type job struct {
	pid      int
	dst      device.Buffer
	src      []segment
	finished func(error) // called once, by a worker, unless stop returned true

	// Guarded by the crew:
	next    int // of dst, what nobody has begun
	running int // chunks under way
	err     error
}

// crew is the workers of one end of a channel. They take turns with the jobs, a
// chunk at a time: several work on one that is alone, and a small one does not
// wait for large ones.
//
// A copy cannot be interrupted, and memory of the peer may keep it waiting for as
// long as the peer likes. So one worker of each crew needs no slot that others could
// hold.
//
// A worker is made when there is something to do that no other one is free for, up to
// as many as the slots allow.
type crew struct {
	slots chan struct{} // a token for each copy under way, of all crews of a factory
	own   chan struct{} // likewise, of this one alone
	spawn func(func())
	copy  func(*reader, piece) error

	arrived func(bytes int) // Link.Arrived

	mu      sync.Mutex
	work    sync.Cond // jobs have come, or the end
	jobs    fifo.Queue[*job]
	workers int
	idle    int // of them, those that wait, or are about to look for something to do
	running int // chunks under way, of all jobs, that are not stuck
	copying int // of them, those that have their slot
	era     int // of chunks: those of earlier ones are stuck
	pace    pace
	alarm   alarm
	closed  bool
}

func newCrew(slots chan struct{}, spawn func(func())) *crew {
	c := &crew{slots: slots, own: make(chan struct{}, 1), spawn: spawn, copy: (*reader).piece}
	c.work.L = &c.mu
	c.alarm.init(c.look)
	return c
}

// start begins a job, of which the fields above next are set.
func (c *crew) start(j *job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j.next, j.running, j.err = 0, 0, nil
	c.jobs.Push(j)
	c.join()
}

// stop ends a job early because of cause. It returns true if that was all there
// was to do: the job's memory is left alone. Else finished will be called, or
// has been.
func (c *crew) stop(j *job, cause error) (idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j.err = cmp.Or(j.err, cause)
	return c.drop(j) && j.running == 0
}

// drop lets no more chunks of a job begin, and reports whether there were any
// left. The caller holds mu.
func (c *crew) drop(j *job) bool {
	j.next = j.dst.Len()
	return c.jobs.Remove(func(other *job) bool { return other == j })
}

// close lets the workers go when there are no jobs any more.
func (c *crew) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.work.Broadcast()
}

// serve is a worker.
func (c *crew) serve() {
	var r reader
	for {
		p := c.take()
		if p.job == nil {
			return
		}
		slot := c.slot()
		c.begin(&p)
		start := time.Now()
		err := c.copy(&r, p)
		outcome, over := c.settle(p, time.Since(start), err)
		if err == nil && c.arrived != nil {
			c.arrived(p.n)
		}
		<-slot // once nobody counts this worker as copying
		if over {
			p.finished(outcome)
		}
		c.rest()
	}
}

// rest counts a worker that is through with what it took.
func (c *crew) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle++
}

// slot waits until one more copy may be under way. The copy is over when the token
// is taken out again.
func (c *crew) slot() chan struct{} {
	select {
	case c.own <- struct{}{}:
		return c.own
	case c.slots <- struct{}{}:
		return c.slots
	}
}

// piece is a chunk of a job that a worker copies.
type piece struct {
	*job
	off, n int
	era    int
	beside int // chunks that were being copied when it began, itself among them
}

// piece copies one.
func (r *reader) piece(p piece) error { return r.read(p.pid, p.dst, p.src, p.off, p.n) }

// take waits for a chunk to copy. There is none at the end.
func (c *crew) take() piece {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.ready() {
		c.alarm.set(c.jobs.Len() > 0)
		c.work.Wait()
	}
	c.idle--
	if c.jobs.Len() == 0 {
		return piece{}
	}
	j := c.jobs.Pop()
	p := piece{job: j, off: j.next, n: min(chunk, j.dst.Len()-j.next), era: c.era}
	j.next += p.n
	j.running++
	c.running++
	if j.next < j.dst.Len() {
		c.jobs.Push(j)
	}
	c.pace.turn()
	c.join()
	return p
}

// join has another worker take a chunk if that is worth it: one that is idle, or a new
// one. To wake one for nothing takes longer than a tenth of a chunk. Who takes a chunk has
// the next one join in turn, so that nothing is left waiting because an idle worker was
// counted on for two. Else the alarm watches over those that wait. The caller holds mu.
func (c *crew) join() {
	switch {
	case !c.ready():
		c.alarm.set(c.jobs.Len() > 0)
	case c.idle > 0:
		c.work.Signal()
	case c.jobs.Len() > 0 && c.workers < cap(c.slots)+cap(c.own):
		c.workers++
		c.idle++
		c.spawn(c.serve)
	}
}

// begin counts a chunk that has its slot.
func (c *crew) begin(p *piece) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.era == c.era {
		c.copying++
		p.beside = c.copying
	}
}

// look is what the alarm does, which somebody set who waits for the chunks under way: if
// none of them has ended since, they count no more.
func (c *crew) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.alarm.rang() && c.jobs.Len() > 0 {
		c.era++
		c.running, c.copying = 0, 0
		c.join()
	}
	c.alarm.set(c.jobs.Len() > 0 && c.running > 0)
}

// ready reports whether a worker has something to do, be it to go. The caller
// holds mu.
func (c *crew) ready() bool {
	if c.jobs.Len() == 0 {
		return c.closed
	}
	return c.pace.another(c.running)
}

// settle notes that a chunk is through, and reports whether its job is, and how
// it went. The rest of a job that has failed is not copied.
func (c *crew) settle(p piece, took time.Duration, err error) (outcome error, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alarm.progress++
	if p.era == c.era {
		c.count(p, took, err)
	}
	p.running--
	p.err = cmp.Or(p.err, err)
	if p.err != nil {
		c.drop(p.job)
	}
	over = p.running == 0 && p.next == p.dst.Len()
	if c.closed {
		c.work.Broadcast()
	} else if over {
		c.join() // this worker has a job to finish first
	}
	return p.err, over
}

// count notes the end of a chunk that was not stuck, and how long it took. The caller
// holds mu.
func (c *crew) count(p piece, took time.Duration, err error) {
	if c.copying == p.beside && p.n == chunk && err == nil {
		c.pace.note(p.beside, p.n, took)
	}
	c.copying--
	c.running--
}
