package wait

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// BusyWaiter lets a goroutine wait with busy polling: from Begin on, one goroutine of the process,
// which polls for all BusyWaiters in turn, calls ready until ready returns true, and then calls wake,
// once. It takes a processor while there are BusyWaiters, except while other goroutines spin.
//
// One goroutine at a time uses a BusyWaiter. The methods may be called on a nil *BusyWaiter, which
// is never polled for.
type BusyWaiter struct {
	ready  func() bool
	wake   func()
	waits  atomic.Bool // in busy.waiters
	poller *busyPoller
}

// NewBusyWaiter returns a BusyWaiter. Neither function may block for long, because all others wait
// meanwhile, or call methods of a BusyWaiter. wake makes the caller of Begin check whether it can go on.
func NewBusyWaiter(ready func() bool, wake func()) *BusyWaiter {
	return &BusyWaiter{ready: ready, wake: wake, poller: busy}
}

// Begin starts the polling. The caller then blocks until it is woken, and calls End.
func (w *BusyWaiter) Begin() {
	if w != nil {
		w.poller.add(w)
	}
}

// End ends the polling. When it returns, neither function of w is being called, nor will be.
func (w *BusyWaiter) End() {
	if w != nil && w.waits.Load() {
		w.poller.remove(w)
	}
}

// busy polls for all BusyWaiters of this process. Like the spin arbiter it has nothing that two
// users of the package could want to configure differently.
var busy = newBusyPoller()

// busyPoller polls for BusyWaiters. Its goroutine exists while there are any.
//
// Goroutines that spin also poll for the BusyWaiters. Its own goroutine then rests: two threads that
// poll would take the processor of the peer.
type busyPoller struct {
	some    atomic.Bool  // there are waiters
	spun    atomic.Bool  // since the poller last looked a goroutine has begun to spin, and none has given up
	callers atomic.Int32 // of add and remove, to which the goroutine leaves mu
	start   func()       // run; a value, so that the start of the goroutine allocates nothing

	mu      sync.Mutex
	waiters []*BusyWaiter
	next    int // the waiter to poll for next
	running bool

	yielder busyYielder // only run uses it
}

func newBusyPoller() *busyPoller {
	p := &busyPoller{}
	p.start = p.run
	return p
}

func (p *busyPoller) add(w *BusyWaiter) {
	p.callers.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.callers.Add(-1)
	p.waiters = append(p.waiters, w)
	w.waits.Store(true)
	p.some.Store(true)
	if !p.running {
		p.running = true
		go p.start()
	}
}

func (p *busyPoller) remove(w *BusyWaiter) {
	p.callers.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.callers.Add(-1)
	if i := slices.Index(p.waiters, w); i >= 0 {
		p.drop(i)
	}
}

// drop removes waiter number i, in whose place comes the last one. The caller holds mu.
func (p *busyPoller) drop(i int) {
	last := len(p.waiters) - 1
	p.waiters[i].waits.Store(false)
	p.waiters[i], p.waiters[last] = p.waiters[last], nil
	p.waiters = p.waiters[:last]
	p.some.Store(last > 0)
}

// poll polls for the next waiters, at most limit, once for each, wakes those that are ready, and
// reports whether there were any. The caller holds mu.
func (p *busyPoller) poll(limit int) (found bool) {
	for range min(limit, len(p.waiters)) {
		if p.next >= len(p.waiters) {
			p.next = 0
		}
		w := p.waiters[p.next]
		if !w.ready() {
			p.next++
			continue
		}
		w.wake() // before End can return
		p.drop(p.next)
		found = true
	}
	return found
}

// pollOne is called by a goroutine that spins, between its own polls. It polls once for one waiter,
// if there are any and no other goroutine polls, and reports whether it has woken that.
func (p *busyPoller) pollOne() (found bool) {
	if p.some.Load() && p.mu.TryLock() {
		found = p.poll(1)
		p.mu.Unlock()
	}
	return found
}

// spinning records that a goroutine begins to spin.
func (p *busyPoller) spinning() {
	if !p.spun.Load() {
		p.spun.Store(true)
	}
}

// gaveUp records that a goroutine has spun without success, and will block.
func (p *busyPoller) gaveUp() {
	if p.spun.Load() {
		p.spun.Store(false)
	}
}

// pollBatch is the number of waiters for which the goroutine polls before callers of add and remove,
// and other threads, have their turn. A poll of a socket takes 0.4 µs.
const pollBatch = 16

// run is the goroutine that polls until there are no waiters.
func (p *busyPoller) run() {
	p.yielder.single = runtime.GOMAXPROCS(0) == 1
	for {
		p.mu.Lock()
		if len(p.waiters) == 0 {
			p.yielder.close()
			p.running = false
			p.mu.Unlock()
			return
		}
		found := p.poll(pollBatch)
		p.mu.Unlock()
		switch {
		case found:
			runtime.Gosched() // the woken goroutine runs here
		case !p.yielder.single && p.spun.Load() && p.spun.Swap(false):
			rest()
		default:
			p.yielder.yield()
		}
		for p.callers.Load() > 0 {
			runtime.Gosched()
		}
	}
}

const (
	// goschedEvery is the time between two calls of runtime.Gosched if the process has more
	// processors than one. Each wakes a thread, which takes time from the peer.
	goschedEvery = time.Millisecond

	// visitEvery is the time between two visits to the network poller of the runtime if the process
	// has one processor.
	visitEvery = 100 * time.Microsecond

	// restFor is the duration of a rest.
	restFor = Spin
)

// busyYielder yields between two polls of a busyPoller.
type busyYielder struct {
	single  bool      // the process has one processor
	last    time.Time // when goroutines, or the network poller, had their turn
	visitor visitor
}

// yield yields to other threads and, now and then, to goroutines. In a process with one processor
// it always yields to both. There the runtime asks the kernel for input of sockets only if no
// goroutine can run, which is never the case while this one polls, or every 10 ms; so yield makes
// it ask.
func (y *busyYielder) yield() {
	if y.single {
		runtime.Gosched()
	}
	yieldThread()
	now := time.Now()
	switch elapsed := now.Sub(y.last); {
	case y.single && elapsed >= visitEvery:
		y.visitor.visit()
	case !y.single && elapsed >= goschedEvery:
		runtime.Gosched()
	default:
		return
	}
	y.last = now
	y.single = runtime.GOMAXPROCS(0) == 1 // which takes a lock of the runtime
}

func (y *busyYielder) close() {
	y.visitor.close()
	y.visitor = visitor{}
}
