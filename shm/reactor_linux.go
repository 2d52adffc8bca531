package shm

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// reactor is where peers leave word that something changed: a ring of tokens, of
// four bytes each, which all peers of a transport write to. Peers that ring
// doorbells have tokens too but do not use them.
type reactor struct {
	memory memory
	ring   *ring.Consumer
	users  int // of the reactors' lock

	broken atomic.Bool // by a peer: no word can be relied on
	due    atomic.Bool // an answer to something that was sent
	asleep atomic.Bool // the one who looks, until the alarm rings
	alarm  *alarm

	mu       sync.Mutex
	bells    []bell // by token; nil are free
	watchers int    // connections whose peers leave word
	quit     chan struct{}
	over     chan struct{}
}

func newReactor() (*reactor, error) {
	m, err := create(reactorSize, reactorSize)
	if err != nil {
		return nil, err
	}
	r := &reactor{memory: m, ring: m.ring.Consumer()}
	if r.alarm, err = newAlarm(); err != nil {
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
	r.alarm.close()
	r.memory.close()
}

// register gives out the lowest token that is free. Whoever leaves it rings b.
func (r *reactor) register(b bell) uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	for token, taken := range r.bells {
		if taken == nil {
			r.bells[token] = b
			return uint32(token)
		}
	}
	r.bells = append(r.bells, b)
	return uint32(len(r.bells) - 1)
}

// unregister frees a token. A peer may still leave it: that then wakes somebody
// else, who finds nothing.
func (r *reactor) unregister(token uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bells[token] = nil
}

// watch makes somebody look for tokens, until unwatch has been called as often.
func (r *reactor) watch(spin, longest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers++
	if r.watchers > 1 {
		return
	}
	quit, over := make(chan struct{}), make(chan struct{})
	before := r.over
	r.quit, r.over = quit, over
	go func() {
		defer close(over)
		if before != nil {
			<-before // one at a time takes tokens out
		}
		r.run(newPace(spin, longest), quit)
	}()
}

// unwatch waits for the one who looks where nobody else needs him.
func (r *reactor) unwatch() {
	r.mu.Lock()
	r.watchers--
	var over chan struct{}
	if r.watchers == 0 {
		close(r.quit)
		r.alarm.ring()
		over = r.over
	}
	r.mu.Unlock()
	if over != nil {
		<-over
	}
}

// hurry is called when an answer may come soon.
func (r *reactor) hurry() {
	r.due.Store(true)
	if r.asleep.Load() && r.asleep.Swap(false) {
		r.alarm.ring()
	}
}

// run looks for tokens: without a pause for a while after the last one or the
// alarm, then at growing intervals.
func (r *reactor) run(p *pace, quit <-chan struct{}) {
	var between wait.Yielder
	for {
		select {
		case <-quit:
			return
		default:
		}
		found := r.deliver()
		p.look(found)
		if found {
			runtime.Gosched() // lets run whom the bells have woken
			continue
		}
		if p.hasty() {
			between.Yield()
			continue
		}
		r.asleep.Store(true)
		if r.due.Swap(false) || r.alarm.rest(p.pause()) {
			p.look(true)
		}
		r.asleep.Store(false)
	}
}

// deliver rings for the tokens that are there and reports whether there were
// any. Where a peer has broken the ring all are rung for each time.
func (r *reactor) deliver() bool {
	if r.broken.Load() {
		r.ringAll()
		return false
	}
	var tokens [256]byte
	n, err := r.ring.Read(tokens[:])
	if err != nil || n%4 != 0 || r.ring.Publish() != nil {
		r.broken.Store(true)
		return false
	}
	for at := 0; at < n; at += 4 {
		r.ringFor(binary.NativeEndian.Uint32(tokens[at:]))
	}
	return n > 0
}

// ringFor ignores tokens that nobody was given.
func (r *reactor) ringFor(token uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uint64(token) < uint64(len(r.bells)) && r.bells[token] != nil {
		r.bells[token].ring()
	}
}

func (r *reactor) ringAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.bells {
		if b != nil {
			b.ring()
		}
	}
}
