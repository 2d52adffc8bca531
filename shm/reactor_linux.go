package shm

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
)

// reactor receives triggers, of four bytes each, from all peers of a transport through one ring,
// and wakes the connections that they are for. A peer sends a trigger to report that a ring of a
// connection has changed. Peers with doorbells have triggers too but do not send them.
type reactor struct {
	memory memory
	ring   *ring.Consumer
	users  int // connections; guarded by reactors.mu

	broken   atomic.Bool // a peer has corrupted the ring: triggers may be lost
	replyDue atomic.Bool // a peer was sent something and may answer soon
	sleeping atomic.Bool // the polling goroutine sleeps, until sleeper.wake
	sleeper  *sleeper

	mu      sync.Mutex
	wakeups []wakeup // by trigger; nil are free
	pollers int      // connections whose peers send triggers
	quit    chan struct{}
	stopped chan struct{}
}

func newReactor() (*reactor, error) {
	m, err := createRing(reactorSize, reactorSize)
	if err != nil {
		return nil, err
	}
	r := &reactor{memory: m, ring: m.ring.Consumer()}
	if r.sleeper, err = newSleeper(); err != nil {
		m.close()
		return nil, err
	}
	if err := r.ring.Begin(); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *reactor) close() {
	r.sleeper.close()
	r.memory.close()
}

// register returns the lowest free trigger. From then on deliver wakes b when it reads that
// trigger, until the caller frees the trigger with unregister.
func (r *reactor) register(b wakeup) uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	for trigger, owner := range r.wakeups {
		if owner == nil {
			r.wakeups[trigger] = b
			return uint32(trigger)
		}
	}
	r.wakeups = append(r.wakeups, b)
	return uint32(len(r.wakeups) - 1)
}

// unregister frees a trigger that register has returned. A peer may still send it, and then wakes
// the next owner of the trigger without need.
func (r *reactor) unregister(trigger uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wakeups[trigger] = nil
}

// startPolling counts a connection that needs triggers. If it is the only one, startPolling starts
// the goroutine that polls for them: without pause for the duration spin after a trigger or a call
// of expectReply, and at intervals that grow to longest after that, or once a peer has corrupted the
// ring. While that goroutine runs, both arguments are ignored. For each call, stopPolling must be called once.
func (r *reactor) startPolling(spin, longest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pollers++
	if r.pollers > 1 {
		return
	}
	quit, stopped := make(chan struct{}), make(chan struct{})
	before := r.stopped
	r.quit, r.stopped = quit, stopped
	go func() {
		defer close(stopped)
		if before != nil {
			<-before // only one goroutine at a time may read the ring
		}
		r.poll(newPace(spin, longest), quit)
	}()
}

// stopPolling ends the effect of one call of startPolling. When no call of startPolling is left in
// effect, it stops the polling goroutine and waits for its end.
func (r *reactor) stopPolling() {
	r.mu.Lock()
	r.pollers--
	var stopped chan struct{}
	if r.pollers == 0 {
		close(r.quit)
		r.sleeper.wake()
		stopped = r.stopped
	}
	r.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
}

// expectReply makes the polling goroutine poll without pause for a while, and wakes it if it
// sleeps. It is called when this end has sent a peer bytes that the peer may answer soon.
func (r *reactor) expectReply() {
	r.replyDue.Store(true)
	if r.sleeping.Load() && r.sleeping.Swap(false) {
		r.sleeper.wake()
	}
}

// poll polls the ring for triggers until quit is closed, and wakes the connections that they are
// for. It polls without pause for a while after the last trigger or call of expectReply, and then
// at the growing intervals of p. One goroutine at a time runs it.
func (r *reactor) poll(p *pace, quit <-chan struct{}) {
	var between wait.Yielder
	for {
		select {
		case <-quit:
			return
		default:
		}
		found := r.deliver()
		p.polled(found)
		if found {
			runtime.Gosched() // lets the woken goroutines run
			continue
		}
		if p.spinning() && !r.broken.Load() {
			between.Yield()
			continue
		}
		r.sleeping.Store(true)
		if r.replyDue.Swap(false) || r.sleeper.sleep(p.pause()) {
			p.polled(true)
		}
		r.sleeping.Store(false)
	}
}

// deliver reads triggers from the ring, at most 64, wakes the connections to which they belong, and
// reports whether there were any. Once it has found that a peer corrupted the ring, each further
// call wakes all connections and returns false. Only the polling goroutine calls it.
func (r *reactor) deliver() bool {
	if r.broken.Load() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, b := range r.wakeups {
			if b != nil {
				b.wake()
			}
		}
		return false
	}
	var triggers [256]byte
	n, err := r.ring.Read(triggers[:])
	if err != nil || n%4 != 0 || r.ring.Publish() != nil {
		r.broken.Store(true)
		return false
	}
	for at := 0; at < n; at += 4 {
		trigger := binary.NativeEndian.Uint32(triggers[at:])
		r.mu.Lock()
		if uint64(trigger) < uint64(len(r.wakeups)) && r.wakeups[trigger] != nil { // the number comes from a peer
			r.wakeups[trigger].wake()
		}
		r.mu.Unlock()
	}
	return n > 0
}

// Transport is the transport through shared memory. It implements [transport.Transport],
// [transport.Local] and [transport.FrameLimiter], and its connections [transport.Identified] and
// [transport.Multiplexer]. Its methods may be called concurrently.
type Transport struct {
	settings
	triggersOnly bool // use no doorbells, as C++ does
	reactors     reactors
}

// reactors holds the reactor of a transport. All connections share one, which exists as long as
// there are any.
type reactors struct {
	mu      sync.Mutex
	current *reactor
}

// acquire returns the transport's reactor, and creates one if there is none. The caller must
// release it. Once a peer has corrupted the ring of the reactor, existing connections keep that
// reactor, and acquire creates another for new ones. The error means that the system denies memory
// or a descriptor.
func (s *reactors) acquire() (*reactor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || s.current.broken.Load() {
		r, err := newReactor()
		if err != nil {
			return nil, err
		}
		s.current = r
	}
	s.current.users++
	return s.current, nil
}

func (s *reactors) release(r *reactor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.users--
	if r.users > 0 {
		return
	}
	if s.current == r {
		s.current = nil
	}
	r.close()
}

// pauseDivisor is the ratio of the time since the last trigger to the pause between two polls. So a
// reply is delayed by a small part of the time that it took.
const pauseDivisor = 64

// pace decides when the polling goroutine of a reactor polls again. Only that goroutine uses it.
type pace struct {
	spin, longest time.Duration
	lastFound     time.Time // when a trigger was found, or a reply became due
	now           time.Time // when the ring was last polled
}

func newPace(spin, longest time.Duration) *pace {
	now := time.Now()
	return &pace{spin: spin, longest: longest, lastFound: now, now: now}
}

// polled records that the ring was polled now. If found is true, a trigger was found or a reply has
// become due, so that polling without pause begins again.
func (p *pace) polled(found bool) {
	p.now = time.Now()
	if found {
		p.lastFound = p.now
	}
}

// spinning reports whether the ring should be polled again without a pause: at the last poll, less
// than p.spin had passed since a trigger was found or a reply became due.
func (p *pace) spinning() bool { return p.now.Sub(p.lastFound) < p.spin }

func (p *pace) pause() time.Duration {
	return min(max(p.now.Sub(p.lastFound)/pauseDivisor, minPause), p.longest)
}

// sleeper lets one goroutine sleep until another one wakes it. It blocks the thread in the kernel,
// because timers of the runtime are late by up to a millisecond on an idle processor.
type sleeper struct {
	fd     int // an eventfd
	polled []unix.PollFd
}

func newSleeper() (*sleeper, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return &sleeper{fd: fd, polled: []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}}, nil
}

// wake ends the current call of sleep or, if there is none, the next one. Any goroutine may call
// it.
func (a *sleeper) wake() {
	once := [8]byte{1}
	_, _ = unix.Write(a.fd, once[:])
}

// sleep blocks for d or until wake is called, and returns true if wake ended it. It returns false
// after d, or earlier after a signal or an error. One goroutine at a time calls it.
func (a *sleeper) sleep(d time.Duration) bool {
	limit := unix.NsecToTimespec(d.Nanoseconds())
	n, err := unix.Ppoll(a.polled, &limit, nil)
	if n <= 0 || err != nil {
		return false
	}
	var rung [8]byte
	_, _ = unix.Read(a.fd, rung[:])
	return true
}

func (a *sleeper) close() { _ = unix.Close(a.fd) }
