package agent

import (
	"fmt"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// Once has a function run once for all requests of one caller that have the same key,
// as the attempts of a call WithRetry have, or calls that are Idempotent. A request
// that comes again while the function runs gets the same answer, and so does one that
// comes later: the latest answers to each caller are kept, as many as Limits.Remembered
// and Limits.RememberedBytes allow. The tensors of an answer that is kept must not
// change; what else is in it is copied. A run that fails after its caller has given up
// counts as none.
//
// An answer that is larger than Limits.RememberedBytes is sent and not kept. A request
// whose answer is not kept, or no longer, fails with ErrEvicted; the function does not
// run again. For a key that the application chose this holds for Limits.RetryWindow.
func Once() ServeOption { return func(s *Served) { s.entry.once = true } }

// keyHeader is the section of a request that has its key.
const keyHeader = "agent.key"

// keyOverhead is what a kept answer takes beside its message and its key, roughly.
const keyOverhead = 512

// memory is the answers to the requests with keys of one caller, of which the oldest
// are evicted first.
type memory struct {
	mu      sync.Mutex
	runs    map[runKey]*run  // under way, or with an answer that is kept
	kept    fifo.Queue[*run] // the answers, oldest first
	bytes   int              // that these hold
	evicted evictedKeys
}

// runKey is what one run of a function is for.
type runKey struct{ typ, name, key string }

// bytes returns the memory of the key of a kept answer.
func (k *runKey) bytes() int { return keyOverhead + len(k.typ) + len(k.name) + len(k.key) }

// run is one run of a function.
type run struct {
	key      runKey
	number   uint64 // of the key, see keyNumber
	over     bool
	answer   *answer    // nil once it is evicted
	last     time.Time  // when it ended, or its key came again
	waiting  []*Request // for the same answer
	evicting eviction   // why there is no answer any more
}

// enter reports whether r is the first request with its key, or one that is answered as
// that was; either is to be launched. Otherwise r waits for the answer to the first. The
// error matches ErrEvicted or ErrOverloaded.
func (m *memory) enter(r *Request) (launch bool, err error) {
	key := runKey{r.handler.typ, r.handler.name, r.key}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.runs[key]
	if old == nil {
		number := keyNumber(r.key)
		if err := m.evicted.admit(key, number, r); err != nil {
			return false, err
		}
		r.once = &run{key: key, number: number}
		if m.runs == nil {
			m.runs = map[runKey]*run{}
		}
		m.runs[key] = r.once
		return true, nil
	}
	if !old.over {
		r.stage.Store(uint32(ServedRepeated))
		old.waiting = append(old.waiting, r)
		return false, nil
	}
	old.last = r.begun
	r.task = repeated{run: old}
	return true, nil
}

// abandon removes the run of a request whose caller has given it up, and whose error
// therefore counts as no answer. The next request that waits for the answer runs instead.
func (r *Request) abandon() {
	m, own := &r.conn.owner.memory, r.once
	r.once = nil
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(own.waiting) == 0 {
		delete(m.runs, own.key)
		m.evicted.forget(own.number)
		return
	}
	next := own.waiting[0]
	own.waiting = own.waiting[1:]
	next.once = own
	go next.conn.launch(next, nil)
}

// remember keeps the answer to a request, which is in e, and gives it to the requests
// that wait for it. It is called before the answer is sent; e is nil if there is none that
// can be sent.
func (r *Request) remember(k kind, e *envelope) {
	own := r.once
	if own == nil {
		return
	}
	limits := &r.conn.agent.limits
	var kept *answer
	if e != nil && own.key.bytes()+e.held() <= limits.RememberedBytes {
		kept = e.copyAnswer(k)
	}
	m := &r.conn.owner.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	own.over, own.last = true, time.Now()
	if len(own.waiting) > 0 {
		shared := kept
		if shared == nil && e != nil {
			shared = e.copyAnswer(k)
		}
		for _, other := range own.waiting {
			other.task = repeated{own, shared}
			go other.conn.launch(other, nil)
		}
		own.waiting = nil
	}
	switch {
	case e == nil:
		m.evict(own, evictedUnsent, limits)
	case kept == nil:
		m.evict(own, evictedForBytes, limits)
	default:
		m.keep(own, kept, limits)
	}
}

// keep adds an answer, and evicts the oldest ones beyond the limits. The caller holds mu.
func (m *memory) keep(own *run, kept *answer, limits *Limits) {
	own.answer = kept
	m.kept.Push(own)
	m.bytes += own.key.bytes() + kept.bytes
	for m.kept.Len() > limits.Remembered {
		m.evict(m.kept.Pop(), evictedForCount, limits)
	}
	for m.bytes > limits.RememberedBytes {
		m.evict(m.kept.Pop(), evictedForBytes, limits)
	}
}

// evict forgets a run and its answer, but not that its key was used. Requests that are
// being answered hold the answer by themselves. The caller holds mu.
func (m *memory) evict(own *run, why eviction, limits *Limits) {
	if own.answer != nil {
		m.bytes -= own.key.bytes() + own.answer.bytes
	}
	own.answer, own.evicting = nil, why
	delete(m.runs, own.key)
	m.evicted.add(own, limits)
}

// answer returns the answer of a run, and why there is none if it has been evicted.
func (m *memory) answer(own *run) (*answer, eviction) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return own.answer, own.evicting
}

// takeKey reads the key of a request whose handler runs once for each.
func (r *Request) takeKey() error {
	if !r.handler.once {
		return nil
	}
	key, _ := r.arrival.decoder.Header(keyHeader)
	if len(key) > maxName+1 {
		return fmt.Errorf("%w: a key of %d bytes", ErrProtocol, len(key))
	}
	r.key = string(key)
	return nil
}
