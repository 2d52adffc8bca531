package rref

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// Each owner grants each of its users, an incarnation of a worker, one lease for all references. It
// has a number that the owner never uses again, its epoch. At the owner any message of the user
// renews it; at the user only an answer that names the epoch does, from the time at which the
// request left, or a reference that the owner sends, for a part of the time. So the lease ends at the
// user before it ends at the owner, which then fences the user: it drops the references, and rejects
// messages that name the epoch.

// leaseHeader names an epoch, as 8 bytes. In a request of a user it asks the owner to renew the
// lease, in a reply of the owner it does. A message has it only if the lease needs to be renewed.
const leaseHeader = "rref.lease"

// userLease is a lease as its user knows it.
type userLease struct {
	epoch     uint64    // 0 before the owner has granted the lease
	renewed   time.Time // when the request left that renewed the lease last
	asked     time.Time // when a request with leaseHeader left
	due       bool      // the next request has leaseHeader
	heartbeat bool      // a heartbeat is under way
	checking  bool      // one is, because a call has failed with ErrFenced
	silent    bool      // the lease is over, which has been logged
}

// Parts of a lease: the interval of ticks, the age at which a request asks for renewal, and that at
// which a heartbeat does. There is a tick each second at least.
const (
	ticksPerLease    = 12
	dueShare         = 6
	heartbeatShare   = 3
	timeoutShare     = 6 // the time limit of a heartbeat
	grantedByMessage = 3 // a reference that the owner sends renews the lease this share of a lease ago
)

// countLeases updates the number of leases. The caller holds r.mu.
func (r *Refs) countLeases() {
	users := maps.Clone(r.holders)
	r.users.Store(&users) // before leases, after which it is read
	r.leases.Store(int64(len(r.holders) + len(r.owners)))
	r.runClock()
}

// runClock makes the clock run if there are leases, handles or children to be asked about. The caller
// holds r.mu.
func (r *Refs) runClock() {
	if r.clock == nil && !r.closed && (r.leases.Load() > 0 || r.handles.Load() > 0 || r.asks.len() > 0) {
		r.ticked = time.Now()
		r.clock = time.AfterFunc(min(r.options.Lease/ticksPerLease, time.Second), r.tick)
	}
}

// handleMade counts a handle of the application, which may be forgotten.
func (r *Refs) handleMade() {
	r.handles.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runClock()
}

// forgottenCores is the references of handles that the garbage collector has found. Its goroutine only
// adds them, since it must not wait, nor wake goroutines of a bubble of testing/synctest.
type forgottenCores struct {
	mu    sync.Mutex
	cores []*core
}

// forget has the use of c by a handle ended at the next tick, which the garbage collector has found.
func (c *core) forget() {
	f := &c.refs.forgotten
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cores = append(f.cores, c)
}

// releaseForgotten ends the uses of the handles that the garbage collector has found.
func (r *Refs) releaseForgotten() {
	r.forgotten.mu.Lock()
	all := r.forgotten.cores
	r.forgotten.cores = nil
	r.forgotten.mu.Unlock()
	for _, c := range all {
		r.handles.Add(-1)
		c.unuse()
	}
}

// tick ends the leases that are over, renews those of this worker, and releases forgotten handles.
func (r *Refs) tick() {
	r.releaseForgotten()
	now := time.Now()
	var dropped []*value
	r.mu.Lock()
	defer func() {
		r.unlock()
		dropAll(dropped)
	}()
	if r.clock = nil; r.closed {
		return
	}
	stopped := now.Sub(r.ticked) > r.options.Lease/2
	r.ticked = now
	for _, h := range r.holders {
		// After this process was stopped, messages may have arrived that it has not read yet.
		if h.spoke.Swap(false) || stopped {
			h.heard = now
		}
		if silence := now.Sub(h.heard); silence > r.options.Lease {
			dropped = append(dropped, r.fence(h, fmt.Errorf("nothing was heard from it for %v", silence.Round(time.Millisecond)))...)
		}
	}
	for _, o := range r.owners {
		r.renew(o, now)
	}
	r.askDue(now)
	r.countLeases()
}

// renew begins to renew the lease at the owner o, if it is old. The caller holds r.mu.
func (r *Refs) renew(o *ownerState, now time.Time) {
	l, age := &o.lease, now.Sub(o.lease.renewed)
	if l.epoch == 0 || o.cores == 0 {
		return
	}
	if age > r.options.Lease && !l.silent {
		l.silent = true
		r.logLater(r.log.Warn, "the owner of references does not answer, and may have dropped them",
			"owner", o.Name, "references", o.cores, "silence", age.Round(time.Millisecond))
	}
	switch {
	case l.heartbeat:
	case age >= r.options.Lease/heartbeatShare:
		l.heartbeat = true
		r.sendHeartbeat(o, &l.heartbeat)
	case age >= r.options.Lease/dueShare && !l.due:
		l.due = true
		r.headers.Add(1)
	}
}

// sendHeartbeat asks the owner o to renew the lease, without waiting, and clears underWay when that
// has ended. The caller holds r.mu.
func (r *Refs) sendHeartbeat(o *ownerState, underWay *bool) {
	l := &o.lease
	epoch := l.epoch
	r.work.Go(func() {
		sent := time.Now()
		opts := []agent.CallOption{agent.WithBackground(), agent.WithTimeout(r.options.Lease / timeoutShare)}
		_, err := renewMessage.Call(r.base, r.agent, agent.To(o.Name), "", leaseRequest{Owner: o.Incarnation, Epoch: epoch}, opts...)
		r.mu.Lock()
		defer r.unlock()
		*underWay = false
		switch {
		case l.epoch != epoch: // the lease has ended meanwhile
		case err == nil:
			_ = r.granted(o, epoch, sent) // cannot fail
		case errors.Is(err, ErrFenced):
			r.failCores(o, err)
		case errors.Is(err, ErrNoValue), errors.Is(err, agent.ErrRestarted), errors.Is(err, agent.ErrNoWorker):
			r.failCores(o, &OwnerError{Owner: o.Name, Err: err})
		default:
			r.logLater(r.log.Debug, "heartbeat of references lost", "owner", o.Name, "error", err)
		}
	})
}

// checkFenced has the lease at the owner o checked, by a heartbeat, if err, that of a call about a
// value of o, matches ErrFenced: it may be the error of a function.
func (r *Refs) checkFenced(o *ownerState, err error) {
	if errors.Is(err, ErrFenced) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if l := &o.lease; l.epoch != 0 && !l.checking && !r.closed {
			l.checking = true
			r.sendHeartbeat(o, &l.checking)
		}
	}
}

// serveRenew replies to a heartbeat.
func (r *Refs) serveRenew(_ context.Context, q *agent.Request, args leaseRequest) {
	if r.checkAddressed(q, args.Owner, args.Epoch) {
		_ = q.Reply(&agent.None{})
	}
}

// granted records that the owner o has answered, under the lease of that epoch, a request that left
// at sent. If the lease is a new one, the references under the old one are lost. The error matches
// ErrFenced if the lease is older than the present one. The caller holds r.mu.
func (r *Refs) granted(o *ownerState, epoch uint64, sent time.Time) error {
	l := &o.lease
	switch {
	case epoch < l.epoch:
		return o.fenced()
	case epoch > l.epoch && l.epoch != 0:
		r.failCores(o, o.fenced())
	}
	l.epoch = epoch
	if sent.After(l.renewed) {
		l.renewed, l.silent = sent, false
	}
	if l.due {
		l.due = false
		r.headers.Add(-1)
	}
	return nil
}

func (o *ownerState) fenced() error {
	return fmt.Errorf("%w: %s heard nothing from this worker for too long", ErrFenced, o.Name)
}

// failCores makes all references to values of o fail with err that o has confirmed: it does not have
// them any more. The caller holds r.mu.
func (r *Refs) failCores(o *ownerState, err error) {
	lost := 0
	for _, c := range r.cores {
		if c.owner == o && c.state == confirmed {
			c.state, c.err, c.dropped = failed, err, true
			c.releaseUnused()
			lost++
		}
	}
	o.deletes = nil
	if o.lease.due {
		r.headers.Add(-1)
	}
	o.lease = userLease{heartbeat: o.lease.heartbeat, checking: o.lease.checking, renewed: time.Now()}
	if lost > 0 {
		r.logLater(r.log.Warn, "references are lost", "owner", o.Name, "references", lost, "error", err)
	}
	r.forgetIfUnused(o)
	r.notify()
}

// checkLease returns nil if the owner, this worker, has granted a lease with that epoch which is not
// over, or if epoch is 0, that of a user which knows of none. The error matches ErrFenced. The
// caller holds r.mu.
func (r *Refs) checkLease(epoch uint64) error {
	if epoch == 0 || r.epochs[epoch] != nil {
		return nil
	}
	return fmt.Errorf("%w: %s heard nothing from the worker for more than %v", ErrFenced, r.self.Name, r.options.Lease)
}

// fence ends the lease of h, a user of this worker, because of why: it drops the references that h
// has. It returns the values that have lost their last one; the caller calls dropAll without r.mu.
// The caller holds r.mu.
func (r *Refs) fence(h *holder, why error) (dropped []*value) {
	delete(r.holders, h.Incarnation)
	delete(r.epochs, h.epoch)
	if h.echo {
		r.headers.Add(-1)
	}
	if h.forks > 0 {
		r.logLater(r.log.Warn, "the references of a worker are dropped", "user", h.Name, "references", h.forks, "reason", why)
		for id, f := range r.forks {
			if f.holder != h {
				continue
			}
			delete(r.children, id) // the user need not accept it any more
			f.gone = true
			if v := r.removeIfUnused(id, f); v != nil {
				dropped = append(dropped, v)
			}
		}
	}
	r.countLeases()
	r.notify()
	return dropped
}

// addLeaseHeader adds leaseHeader to the message m, which is to be sent, if the lease between the
// two workers needs it.
func (r *Refs) addLeaseHeader(m *agent.Message) {
	if r.headers.Load() == 0 {
		return
	}
	epoch := uint64(0)
	r.mu.Lock()
	if m.Kind == agent.KindRequest {
		if o := r.owners[m.Incarnation()]; o != nil && o.lease.due {
			o.lease.due, o.lease.asked = false, time.Now()
			epoch = o.lease.epoch
		}
	} else if h := r.holders[m.Incarnation()]; h != nil && h.echo {
		h.echo = false
		epoch = h.epoch
	}
	r.mu.Unlock()
	if epoch != 0 {
		r.headers.Add(-1)
		m.SetHeader(leaseHeader, binary.LittleEndian.AppendUint64(nil, epoch))
	}
}

// received renews the leases between this worker and the sender of m, a message that was received. It
// takes r.mu only for a message with leaseHeader, so that calls do not wait for other references.
func (r *Refs) received(m *agent.Message) {
	if r.leases.Load() == 0 {
		return
	}
	if h := (*r.users.Load())[m.Incarnation()]; h != nil {
		h.spoke.Store(true)
	}
	data, ok := m.Header(leaseHeader)
	if !ok || len(data) != 8 {
		return
	}
	epoch := binary.LittleEndian.Uint64(data)
	r.mu.Lock()
	defer r.unlock()
	switch {
	case m.Kind == agent.KindRequest:
		if h := r.epochs[epoch]; h != nil && h.Incarnation == m.Incarnation() && !h.echo {
			h.echo = true
			r.headers.Add(1)
		}
	default:
		if o := r.owners[m.Incarnation()]; o != nil && o.lease.epoch == epoch {
			_ = r.granted(o, epoch, o.lease.asked)
		}
	}
}

// silence returns for how long nothing has been heard from w, since begun at most.
func (r *Refs) silence(w worker, begun time.Time) time.Duration {
	last := begun
	r.mu.Lock()
	defer r.mu.Unlock()
	if o := r.owners[w.Incarnation]; o != nil && o.lease.renewed.After(last) {
		last = o.lease.renewed
	}
	if h := r.holders[w.Incarnation]; h != nil && h.heard.After(last) {
		last = h.heard
	}
	return time.Since(last)
}

// memberChanged handles a change of the members of the group. A worker whose pipe has broken keeps
// its lease.
func (r *Refs) memberChanged(e agent.MemberEvent) {
	switch e.Kind {
	case agent.MemberLeft, agent.MemberRemoved:
		r.forgetWorkers(func(w worker) bool { return w.Incarnation == e.Incarnation }, errGone[e.Kind])
	case agent.MemberRestarted:
		r.forgetWorkers(func(w worker) bool { return w.Name == e.Worker.Name && w.Incarnation != e.Incarnation }, errGone[e.Kind])
	}
}

// errGone are the reasons for which the references of a worker are dropped.
var errGone = map[agent.MemberEventKind]error{
	agent.MemberLeft:      errors.New("it has left the group"),
	agent.MemberRemoved:   errors.New("it was removed from the group"),
	agent.MemberRestarted: errors.New("it has restarted"),
}

// forgetWorkers drops, because of why, the references of the workers that match selects, fails those
// to their values, and ends the wait for them to accept references.
func (r *Refs) forgetWorkers(match func(worker) bool, why error) {
	var dropped []*value
	var unheard []forkID
	r.mu.Lock()
	for _, h := range r.holders {
		if match(h.worker) {
			dropped = append(dropped, r.fence(h, why)...)
		}
	}
	for _, o := range r.owners {
		if match(o.worker) {
			r.failCores(o, &OwnerError{Owner: o.Name, Err: why})
		}
	}
	for id, ch := range r.children {
		if match(ch.to) {
			unheard = append(unheard, id)
		}
	}
	r.unlock()
	dropAll(dropped)
	for _, id := range unheard {
		r.neverArrived(id)
	}
}
