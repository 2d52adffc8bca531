package agent

import (
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
// run again. A repeat that is held back, see Limits.AnswerBytes, fails too if the answer is
// evicted before its turn. For a key that the application chose this holds for
// Limits.RetryWindow, for one of WithRetry until the call has ended and after that.
func Once() ServeOption { return func(s *Served) { s.entry.once = true } }

// keyHeader is the section of a request that has its key.
const keyHeader = "agent.key"

// keyOverhead is what a kept answer takes beside its message and its key, roughly.
const keyOverhead = 512

// memory is the answers to the requests with keys of one caller, of which the oldest
// are evicted first.
type memory struct {
	mu    sync.Mutex
	runs  map[runKey]*run  // under way, or with an answer that is kept
	kept  fifo.Queue[*run] // the answers, oldest first
	bytes int              // that these hold
	used  usedKeys         // whose answers are not kept
}

// runKey is what one run of a function is for.
type runKey struct{ typ, name, key string }

// bytes returns the memory of the key of a kept answer.
func (k *runKey) bytes() int { return keyOverhead + len(k.typ) + len(k.name) + len(k.key) }

// run is one run of a function.
type run struct {
	key      runKey
	id       keyID
	over     bool
	answer   *answer    // nil once it is evicted
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
	m.used.expire(time.Now(), r.conn.agent.limits.RetryWindow)
	m.used.drop(r.ended)
	old := m.runs[key]
	if old == nil {
		id := m.used.identify(key, r.number)
		if err := m.used.admit(id, len(m.runs), r); err != nil {
			return false, err
		}
		r.once = &run{key: key, id: id}
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
	r.task = repeated{old}
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
		return
	}
	next := own.waiting[0]
	own.waiting = own.waiting[1:]
	next.once = own
	go next.conn.launch(next, nil)
}

// sendOnce sends the answer to a request, which is in e, keeps it, and answers the requests
// that wait for it. e is nil if there is none that can be sent.
//
// The repeats are answered one after the other: as soon as Limits.AnswerBytes of answers
// have not left, the backlog holds the other repeats. These refer to the run only, whose
// answer may be evicted before their turn.
func (r *Request) sendOnce(k kind, e *envelope) {
	own := r.once
	if own == nil {
		if e != nil {
			r.send(e)
		}
		return
	}
	r.once = nil
	m, limits := &r.conn.owner.memory, &r.conn.agent.limits
	waiting, evict := m.end(own, k, e, limits)
	if e != nil {
		r.send(e)
	}
	for i, other := range waiting {
		waiting[i] = nil
		other.task = repeated{own}
		other.conn.launch(other, nil)
	}
	if evict != 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.evict(own, evict, limits)
	}
}

// end ends a run with the answer in e, nil for none. It returns the requests that wait for
// the answer, and why the run is to be evicted once these are launched, 0 if it is not.
func (m *memory) end(own *run, k kind, e *envelope, limits *Limits) (waiting []*Request, evict eviction) {
	var kept *answer
	size := 0
	if e == nil {
		evict = evictedUnsent
	} else if size = e.held(); own.key.bytes()+size > limits.RememberedBytes {
		evict = evictedForBytes
	} else {
		kept = e.copyAnswer(k, size) // without the lock
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	waiting, own.waiting = own.waiting, nil
	own.over, own.evicting = true, evict
	switch {
	case kept != nil:
		m.keep(own, kept, limits)
	case e != nil && len(waiting) > 0:
		own.answer = e.copyAnswer(k, size)
	}
	return waiting, evict
}

// keep adds an answer, and evicts the oldest ones beyond the limits. The caller holds mu.
func (m *memory) keep(own *run, kept *answer, limits *Limits) {
	own.answer = kept
	m.kept.Push(own)
	m.bytes += own.key.bytes() + kept.bytes
	for m.kept.Len() > limits.Remembered {
		m.evictOldest(evictedForCount, limits)
	}
	for m.bytes > limits.RememberedBytes {
		m.evictOldest(evictedForBytes, limits)
	}
}

// evictOldest evicts the oldest answer that is kept. The caller holds mu.
func (m *memory) evictOldest(why eviction, limits *Limits) {
	oldest := m.kept.Pop()
	m.bytes -= oldest.key.bytes() + oldest.answer.bytes
	m.evict(oldest, why, limits)
}

// evict forgets a run and its answer, but not that its key was used. Requests that are
// being answered hold the answer by themselves. The caller holds mu.
func (m *memory) evict(own *run, why eviction, limits *Limits) {
	own.answer, own.evicting = nil, why
	delete(m.runs, own.key)
	m.used.expire(time.Now(), limits.RetryWindow)
	m.used.add(own.id, why, limits)
}

// answer returns the answer of a run, and why there is none if it has been evicted.
func (m *memory) answer(own *run) (*answer, eviction) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return own.answer, own.evicting
}

// takeKey reads the key of a request whose handler runs once for each. The error matches
// ErrProtocol.
func (r *Request) takeKey() (err error) {
	if !r.handler.once {
		return nil
	}
	if key, ok := r.arrival.decoder.Header(keyHeader); ok {
		r.key, r.number, r.ended, err = parseKey(key)
	}
	return err
}
