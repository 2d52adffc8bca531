package rref

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
)

// value is a value that this worker owns, or that is being created here. Its fields are guarded by
// Refs.mu until it is ready; then ptr, typ and err do not change.
type value struct {
	label   Label
	ready   bool
	ptr     any // points to the value; nil if err is set
	typ     string
	err     error // with which the creation has failed
	kept    *agent.Kept
	waiting map[*waiter]struct{} // run when the value is ready
	forks   int                  // references of other workers
	locals  int                  // references of this worker, and messages that carry one
	since   time.Time
}

func (v *value) stateName() string {
	switch {
	case !v.ready:
		return "being created"
	case v.err != nil:
		return "failed"
	}
	return v.typ
}

// order makes the streams of ctx wait for the work that computes the tensors of v, which is ready.
func (v *value) order(ctx context.Context) error {
	if v.kept == nil {
		return nil
	}
	return v.kept.Order(ctx)
}

// drop releases the memory that the creation of the value has borrowed.
func (v *value) drop() {
	if v.kept != nil {
		v.kept.Drop()
	}
}

func dropAll(values []*value) {
	for _, v := range values {
		v.drop()
	}
}

// fork is one reference of another worker to a value of this one, or a temporary one of a message.
type fork struct {
	value  *value
	holder *holder // nil for a temporary fork
	pins   int     // messages with this fork that have not ended
	gone   bool    // the holder has deleted it
}

// holder is one incarnation of a worker that has, or may soon have, references to values of this one,
// and its lease.
type holder struct {
	worker
	forks int
	epoch uint64
	heard time.Time   // when a message of it was received last, or a little later
	spoke atomic.Bool // a message of it was received after the last tick
	echo  bool        // the next reply to it has leaseHeader
}

// awaiting is a request that names a fork which this owner does not know yet: the message that
// creates the fork may have been overtaken.
type awaiting struct {
	found func(*value, error) // called once
	from  [16]byte            // the incarnation that has sent it
	timer *time.Timer
	end   func() bool // stops watching the context of the request
}

func (w *awaiting) stop() {
	w.timer.Stop()
	w.end()
}

// newValue returns a value that is not ready, with one local reference. The caller holds r.mu.
func (r *Refs) newValue(label Label) *value {
	v := &value{label: label, locals: 1, since: time.Now()}
	r.values[v] = struct{}{}
	return v
}

// complete makes v ready with the value to which ptr points, or with err, and runs the functions
// that wait for it.
func (r *Refs) complete(v *value, ptr any, kept *agent.Kept, err error) {
	typ := ""
	if err == nil {
		typ = codec.TypeName(reflect.TypeOf(ptr).Elem())
	}
	r.mu.Lock()
	if v.ready { // the creation has failed for its caller, on this worker, before the function returned
		r.mu.Unlock()
		if kept != nil {
			kept.Drop()
		}
		return
	}
	v.ready, v.ptr, v.typ, v.kept, v.err = true, ptr, typ, kept, err
	waiting := v.waiting
	v.waiting = nil
	_, wanted := r.values[v]
	r.mu.Unlock()
	for w := range waiting {
		w.ready()
	}
	if !wanted { // its last reference has gone meanwhile
		v.drop()
	}
}

// hold keeps v, which must be kept already, until unhold is called.
func (r *Refs) hold(v *value) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v.locals++
}

// unhold ends a local reference to v, and drops v if it was the last one.
func (r *Refs) unhold(v *value) {
	r.mu.Lock()
	v.locals--
	dropped := r.dropIfUnused(v)
	r.mu.Unlock()
	if dropped != nil {
		dropped.drop()
	}
}

// waiter waits for a value to be ready.
type waiter struct{ ready func() }

// whenReady runs f, at once if v is ready, and otherwise on the goroutine that completes v, unless ctx
// ends before. It then runs ended, which may be nil, on another goroutine.
func (r *Refs) whenReady(ctx context.Context, v *value, f, ended func()) {
	r.mu.Lock()
	if v.ready {
		r.mu.Unlock()
		f()
		return
	}
	w := &waiter{f}
	if v.waiting == nil {
		v.waiting = map[*waiter]struct{}{}
	}
	v.waiting[w] = struct{}{}
	r.mu.Unlock()
	context.AfterFunc(ctx, func() {
		r.mu.Lock()
		_, waits := v.waiting[w]
		delete(v.waiting, w)
		r.mu.Unlock()
		if waits && ended != nil {
			ended()
		}
	})
}

// addFork adds a fork of v with that id, of the worker w, and returns it. If w has it already, addFork
// does nothing. The error matches ErrShared if the fork is refused, ErrNoValue if the id is that of
// another worker's fork or v is gone, and agent.ErrOverloaded if w has too many. The caller holds r.mu.
func (r *Refs) addFork(v *value, id forkID, w worker) (*fork, error) {
	h := r.holders[w.Incarnation]
	if f := r.forks[id]; f != nil {
		if h == nil || f.holder != h || f.gone {
			return nil, fmt.Errorf("%w: the reference is that of another worker, or was released", ErrNoValue)
		}
		return f, nil
	}
	if _, kept := r.values[v]; !kept {
		return nil, ErrNoValue
	}
	if r.refused.has(id) {
		return nil, fmt.Errorf("%w: it was given up", ErrShared)
	}
	if h == nil {
		r.lastEpoch++
		h = &holder{worker: w, epoch: r.lastEpoch, heard: time.Now()}
		r.holders[w.Incarnation], r.epochs[h.epoch] = h, h
		r.countLeases()
	}
	if h.forks >= r.options.MaxReferences {
		return nil, fmt.Errorf("%w: %s has %d references to values of %s", agent.ErrOverloaded, w.Name, h.forks, r.self.Name)
	}
	h.forks++
	f := &fork{value: v, holder: h}
	r.forks[id] = f
	v.forks++
	r.arrive(id, v)
	return f, nil
}

// arrive runs the requests that wait for the fork, without r.mu: each on a goroutine of its own. The
// caller holds r.mu.
func (r *Refs) arrive(id forkID, v *value) {
	for _, w := range r.awaited[id] {
		r.countAwaited(w, -1)
		v.locals++
		go func() {
			w.found(v, nil)
			r.unhold(v)
		}()
	}
	delete(r.awaited, id)
}

// countAwaited adds n to the number of requests that wait for a fork, of the worker that has sent w.
// If n is negative w is stopped. The caller holds r.mu.
func (r *Refs) countAwaited(w *awaiting, n int) {
	if n < 0 {
		w.stop()
	}
	if r.awaitedOf[w.from] += n; r.awaitedOf[w.from] == 0 {
		delete(r.awaitedOf, w.from)
	}
}

// find calls found with the value of the fork, for a message of the worker with the incarnation from:
// at once or, if the fork is not known yet, when the message arrives that creates it, on another
// goroutine. If none arrives within a lease, or before ctx ends, the error of found matches ErrNoValue
// or is the cause of ctx. It matches
// agent.ErrOverloaded if too many messages of that worker wait.
func (r *Refs) find(ctx context.Context, id forkID, from [16]byte, found func(*value, error)) {
	r.mu.Lock()
	if f := r.forks[id]; f != nil {
		f.value.locals++
		r.mu.Unlock()
		found(f.value, nil)
		r.unhold(f.value)
		return
	}
	defer r.mu.Unlock()
	switch {
	case r.closed:
		go found(nil, ErrClosed)
	case r.refused.has(id):
		go found(nil, fmt.Errorf("%w: it was given up", ErrNoValue))
	case r.awaitedOf[from] >= r.options.MaxPending:
		go found(nil, fmt.Errorf("%w: %d references are awaited", agent.ErrOverloaded, r.awaitedOf[from]))
	default:
		w := &awaiting{found: found, from: from}
		fail := func(err error) {
			if r.unawait(id, w) {
				found(nil, err)
			}
		}
		w.timer = time.AfterFunc(r.options.Lease, func() {
			fail(fmt.Errorf("%w within %v: it was released, or has never arrived", ErrNoValue, r.options.Lease))
		})
		w.end = context.AfterFunc(ctx, func() { fail(context.Cause(ctx)) })
		r.awaited[id] = append(r.awaited[id], w)
		r.countAwaited(w, 1)
	}
}

// holdReady returns the value of the fork with that id, and holds it, or nil if this worker does not know the
// fork or the value is not ready.
func (r *Refs) holdReady(id forkID) *value {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.forks[id]
	if f == nil || !f.value.ready {
		return nil
	}
	f.value.locals++
	return f.value
}

// unawait removes w from the requests that wait for the fork, and reports whether it was there.
func (r *Refs) unawait(id forkID, w *awaiting) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.awaited[id]
	for i := range all {
		if all[i] == w {
			r.countAwaited(w, -1)
			if all = append(all[:i:i], all[i+1:]...); len(all) == 0 {
				delete(r.awaited, id)
			} else {
				r.awaited[id] = all
			}
			return true
		}
	}
	return false
}

// deleteFork records that the holder has deleted the fork, which is removed unless a message carries
// it. It does nothing for an unknown fork, or one of another holder. The caller holds r.mu.
func (r *Refs) deleteFork(id forkID, incarnation [16]byte) (dropped *value) {
	f := r.forks[id]
	if f == nil || f.holder == nil || f.holder != r.holders[incarnation] || f.gone {
		return nil
	}
	f.gone = true
	return r.removeIfUnused(id, f)
}

// unpin ends the message that carried the fork.
func (r *Refs) unpin(id forkID, f *fork) {
	r.mu.Lock()
	f.pins--
	dropped := r.removeIfUnused(id, f)
	r.mu.Unlock()
	if dropped != nil {
		dropped.drop()
	}
}

// removeIfUnused removes the fork if its holder has deleted it and no message carries it. A repeated
// message that would add it again is refused from then on. removeIfUnused returns
// the value if that is dropped with its last reference, and otherwise nil; the caller then calls
// value.drop without r.mu. The caller holds r.mu.
func (r *Refs) removeIfUnused(id forkID, f *fork) (dropped *value) {
	if f.pins > 0 || !f.gone {
		return nil
	}
	delete(r.forks, id)
	if f.holder != nil {
		f.holder.forks-- // without forks it stays until its lease is over
		r.refused.add(id, r.options.Lease)
	}
	f.value.forks--
	return r.dropIfUnused(f.value)
}

// dropIfUnused removes v if nothing refers to it any more, and returns it then if it is ready. The
// caller holds r.mu, and calls value.drop of the result, if that is not nil, without r.mu.
func (r *Refs) dropIfUnused(v *value) *value {
	if v.forks > 0 || v.locals > 0 {
		return nil
	}
	if _, known := r.values[v]; !known {
		return nil
	}
	delete(r.values, v)
	r.notify()
	if !v.ready {
		return nil // complete drops it
	}
	return v
}
