package agent

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// WithOnce makes a function run once for all requests of one caller that have the same key: the
// attempts of a call WithRetry, or calls WithIdempotencyKey. A request that arrives while the
// function runs gets the same reply. So does a request that arrives later: the latest replies to
// each caller are kept, within Limits.MaxRemembered and Limits.RememberedBytes. The tensors of a
// kept reply must not change; its other values are copied. A run that fails after its caller has
// cancelled the call does not count.
//
// A reply that is larger than Limits.RememberedBytes is sent and not kept. A request whose reply
// was not kept, or was evicted, fails with ErrEvicted, and the function does not run again. A
// request that has to wait until its caller reads replies, see Limits.AnswerBytes, fails with
// ErrEvicted too if the reply is evicted during that wait. A key of the application is remembered
// for Limits.RetryWindow, a key of WithRetry as long as the caller is a member.
//
// WithOnce excludes WithBorrowedArgs: Join fails for a function with both.
func WithOnce() ServeOption { return func(s *Served) { s.entry.once = true } }

// keyOverhead is roughly the memory of a kept reply in addition to its message and its key.
const keyOverhead = 512

// onceCache holds the replies to the requests of one caller that have keys. The oldest ones
// are evicted first.
type onceCache struct {
	mu        sync.Mutex
	runs      map[onceKey]*onceRun // in progress, or with a reply that is kept
	kept      fifo.Queue[*onceRun] // runs with a reply that is kept, the oldest first
	keptBytes int                  // of these
	used      usedKeys             // keys of replies that are not kept
	forgotten bool                 // the caller has left the group: nothing is kept any more
}

// onceKey identifies one run of a function for one caller.
type onceKey struct{ typ, name, key string }

// bytes returns the memory that a kept reply takes in addition to its message: its key and
// keyOverhead.
func (k *onceKey) bytes() int { return keyOverhead + len(k.typ) + len(k.name) + len(k.key) }

// onceRun is one run of a function, guarded by the mutex of the cache.
type onceRun struct {
	key      onceKey
	id       keyID
	finished bool
	reply    *keptReply // nil before the end of the run, and once evicted
	waiting  []*Request // for the same reply
	evicted  eviction   // why the reply is not kept
}

// start looks up the run for the key of the request r, and registers r with it. It returns true if
// the caller must launch r: r is the first request with its key and runs the function, or the run
// has finished and the task of r, now a repeatTask, sends the reply again. It returns false and nil
// if r waits for the reply of the run in progress. If the error is not nil, r is not registered: it
// matches ErrEvicted if the reply was not kept, and ErrOverloaded if the caller has too many keys.
func (m *onceCache) start(r *Request) (launch bool, err error) {
	key := onceKey{r.handler.typ, r.handler.name, r.key}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used.expire(time.Now(), r.conn.agent.limits.RetryWindow)
	m.used.drop(r.ended)
	run := m.runs[key]
	if run == nil {
		id := m.used.identify(key, r.number)
		if err := m.used.admit(id, len(m.runs), r); err != nil {
			return false, err
		}
		r.once = &onceRun{key: key, id: id}
		if m.runs == nil {
			m.runs = map[onceKey]*onceRun{}
		}
		m.runs[key] = r.once
		return true, nil
	}
	if !run.finished {
		r.stage.Store(uint32(ServedRepeated))
		run.waiting = append(run.waiting, r)
		return false, nil
	}
	r.task = repeatTask{run}
	return true, nil
}

// abandonRun ends the run of r, which failed after the caller had cancelled the call. No reply is
// kept. If other requests wait for the reply, the first of them runs the function instead. r must
// have a run.
func (r *Request) abandonRun() {
	m, run := &r.conn.owner.onceCache, r.once
	r.once = nil
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(run.waiting) == 0 {
		delete(m.runs, run.key)
		return
	}
	next := run.waiting[0]
	run.waiting = run.waiting[1:]
	next.once = run
	go next.conn.launch(next, nil)
}

// sendReply sends out, the reply to the request, and owns it. k is the kind of the reply; out is
// nil if no reply could be encoded. If the request has started a run for a key, sendReply also ends
// that run: it keeps a copy of the reply, within the limits, and replies to the requests that wait
// for it.
//
// The waiting requests are replied to one after the other. Once the unsent replies exceed
// Limits.AnswerBytes, the remaining requests are queued. They refer to the run and not to its
// reply, which may be evicted before they are replied to.
func (r *Request) sendReply(k Kind, out *outMessage) {
	run := r.once
	if run == nil {
		if out != nil {
			r.send(out)
		}
		return
	}
	r.once = nil
	m, limits := &r.conn.owner.onceCache, &r.conn.agent.limits
	waiting, evict := m.finish(r, run, k, out)
	if out != nil {
		r.send(out)
	}
	for i, other := range waiting {
		waiting[i] = nil
		other.task = repeatTask{run}
		other.conn.launch(other, nil)
	}
	if evict != 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.evict(run, evict, limits)
	}
}

// finish marks the run, which r has started, as finished, and keeps a copy of the reply in out, if
// out is not nil and the limits allow it. It returns the requests that wait for the reply. evict is
// 0 if the reply is kept. Otherwise evict is the reason for which the caller must evict the run,
// once it has launched these requests; until then the run has a copy for them. The functions of
// OnEnd of the reply belong to the copy, if there is one. finish does not change out, and locks m.mu.
func (m *onceCache) finish(r *Request, run *onceRun, k Kind, out *outMessage) (waiting []*Request, evict eviction) {
	limits := &r.conn.agent.limits
	var kept *keptReply
	size := 0
	if out == nil {
		evict = evictedUnsent
	} else if size = out.keptBytes(); run.key.bytes()+size > limits.RememberedBytes {
		evict = evictedForBytes
	} else {
		kept = out.copyReply(k, size) // without the lock
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.forgotten && evict == 0 {
		kept, evict = nil, evictedUnsent
	}
	waiting, run.waiting = run.waiting, nil
	run.finished, run.evicted = true, evict
	switch {
	case kept != nil:
		m.add(run, kept, limits)
	case out != nil && len(waiting) > 0:
		run.reply = out.copyReply(k, size)
	}
	if run.reply != nil {
		run.reply.ends = r.replyEnds.take()
	}
	return waiting, evict
}

// add keeps the reply of a run in the cache, and evicts the oldest replies, possibly this one,
// until the cache is within the limits. The caller holds m.mu.
func (m *onceCache) add(run *onceRun, kept *keptReply, limits *Limits) {
	run.reply = kept
	m.kept.Push(run)
	m.keptBytes += run.key.bytes() + kept.bytes
	for m.kept.Len() > limits.MaxRemembered {
		m.evictOldest(evictedForCount, limits)
	}
	for m.keptBytes > limits.RememberedBytes {
		m.evictOldest(evictedForBytes, limits)
	}
}

// evictOldest evicts the oldest kept reply, of which there must be one, and records why it did. The
// caller holds m.mu.
func (m *onceCache) evictOldest(why eviction, limits *Limits) {
	oldest := m.kept.Pop()
	m.keptBytes -= oldest.key.bytes() + oldest.reply.bytes
	m.evict(oldest, why, limits)
}

// forget ends all replies that are kept: the caller has left the group, and its requests cannot be
// repeated. It locks m.mu.
func (m *onceCache) forget() {
	m.mu.Lock()
	var all []*keptReply
	for _, run := range m.runs {
		if run.reply != nil {
			all = append(all, run.reply)
		}
	}
	m.runs, m.kept, m.keptBytes, m.forgotten = nil, fifo.Queue[*onceRun]{}, 0, true
	m.mu.Unlock()
	for _, reply := range all {
		reply.ends.run(MessageSent, nil)
	}
}

// evict removes a run and its reply from the cache, and records the key as used, with the reason
// that later requests get. A reply that is being sent again stays reachable until it was sent. The
// caller holds m.mu and has removed the run from m.kept.
func (m *onceCache) evict(run *onceRun, why eviction, limits *Limits) {
	if run.reply != nil && run.reply.ends.first != nil {
		go run.reply.ends.run(MessageSent, nil) // without m.mu
	}
	run.reply, run.evicted = nil, why
	delete(m.runs, run.key)
	m.used.expire(time.Now(), limits.RetryWindow)
	m.used.add(run.id, why, limits)
}

// keptReply is the message of a reply, as interceptors and the codec made it. It can be sent
// any number of times, concurrently.
//
// It does not refer to values of the handler, which could keep any amount of memory reachable,
// but to the storages of the large tensors. These are released by the garbage collector after
// the last reference to the reply is gone.
type keptReply struct {
	kind     Kind
	body     []byte
	tensors  []pipe.Tensor
	storages []*tensor.Storage // of the tensors, nil for those that were copied
	bytes    int               // memory of all this
	ends     messageEnds       // run when the reply is evicted
}

// isCopied reports whether a kept reply has a copy of the tensor in b, rather than a reference:
// if it is small and in host memory without a stream. A small tensor may lie in a large storage,
// and a pipe copies tensors of that size as well.
func isCopied(b device.Buffer) bool {
	return b.IsHost() && b.Stream() == nil && b.Len() <= maxInlineBytes
}

// keptBytes returns the memory that the result of copyReply would keep: the body, the tensors
// that it copies, and the storage of each other tensor, counting a shared one once.
func (out *outMessage) keptBytes() int {
	n := len(out.buf) - out.head
	var counted map[*tensor.Storage]bool
	for i, s := range out.encoder.Storages() {
		b := out.message.Tensors[i].Buffer
		switch {
		case isCopied(b):
			n += b.Len()
		case !counted[s]:
			if counted == nil {
				counted = map[*tensor.Storage]bool{}
			}
			counted[s] = true
			n += s.Len()
		}
	}
	return n
}

// copyReply returns a copy of the reply in out, of kind k, that can be sent later: with copies of
// the body and of small host tensors, and with references to the storages of the other tensors,
// which must not change. size is the result of keptBytes. out is not changed.
func (out *outMessage) copyReply(k Kind, size int) *keptReply {
	kept := &keptReply{
		kind: k, bytes: size,
		body:     bytes.Clone(out.buf[out.head:]),
		tensors:  slices.Clone(out.message.Tensors),
		storages: slices.Clone(out.encoder.Storages()),
	}
	for i := range kept.tensors {
		if b := kept.tensors[i].Buffer; isCopied(b) {
			kept.tensors[i].Buffer = device.Bytes(slices.Concat(b.AppendSegments(nil)...))
			kept.storages[i] = nil
		}
	}
	return kept
}

// repeatTask is the task of a request that gets the reply of an earlier run. It refers to the
// run, not to the reply: a task in the backlog does not keep the memory of a reply that was
// evicted.
type repeatTask struct{ run *onceRun }

// Run implements Task. It replies with a copy of the kept reply, without interceptors. If the
// reply was evicted, it replies with an error that matches ErrEvicted; if a tensor was released or
// cannot be sent, with one that matches ErrResult.
func (t repeatTask) Run(ctx context.Context, r *Request) {
	m := &r.conn.owner.onceCache
	m.mu.Lock()
	kept, why := t.run.reply, t.run.evicted
	m.mu.Unlock()
	if kept == nil {
		_ = r.Fail(why.err(r)) // an error is the reply, too
		return
	}
	if r.claim() != nil {
		return
	}
	a := r.conn.agent
	out := a.outMessages.get()
	out.begin(wire.AppendReply(out.buf[:0], kept.kind, r.id))
	out.route = r.conn.replyRoute
	out.view = Message{Kind: kept.kind, Type: r.handler.typ, Name: r.handler.name, Peer: r.conn.peer, key: r.callKey()}
	err := catchPanic(func() error { // builds with the tag "invariants" panic at a use of released memory
		for _, s := range kept.storages {
			if s == nil {
				continue
			}
			if _, err := s.Buffer(); err != nil { // the application has released the tensor
				return err
			}
		}
		return out.fill(ctx, append(out.buf, kept.body...), slices.Clone(kept.tensors), a.devices)
	})
	if err != nil {
		a.outMessages.put(out)
		r.replyFailure(withKind(ErrResult, err))
		return
	}
	if r.event != nil && kept.kind == KindFailure {
		r.event.Err = ErrRepeated
	}
	r.send(out)
}

// Short implements ShortTask. It returns true: no function of the application runs, which would
// need a slot.
func (repeatTask) Short() bool { return true }
