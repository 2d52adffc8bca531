package rref

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// coreState is the state of a reference of this worker.
type coreState byte

const (
	pending   coreState = iota // the owner has not confirmed the reference
	confirmed                  // the owner keeps the value for this reference
	failed                     // the creation or the confirmation has failed, or the owner has dropped the reference
	deleted                    // released, and to be deleted at the owner
)

func (s coreState) String() string {
	return [...]string{"pending", "confirmed", "failed", "deleted"}[s]
}

// core is what all copies of one reference in this process share: a fork of the value of another
// worker, or a use of a value of this one.
type core struct {
	refs      *Refs
	owner     *ownerState
	label     Label // of the value
	forkLabel Label
	id        forkID
	since     time.Time

	// Guarded by Refs.mu.
	created *agent.Future[agent.None] // done when the owner has confirmed, or failed; nil once confirmed
	value   *value                    // of a reference on the owner, nil on other workers, and before the owner knows it
	err     error
	localID *forkID // on the owner: see Refs.localID
	uses    int     // handles of the application, messages that carry the reference, and fetches
	epoch   uint64  // of the lease under which the owner has confirmed the reference
	typ     string  // of the value, once known
	state   coreState
	dropped bool // the owner does not have it any more
}

// ownerState is a worker to which this one has references, or messages about them.
type ownerState struct {
	worker

	// Guarded by Refs.mu.
	lease    userLease
	cores    int      // references to values of that worker
	deletes  []forkID // to be deleted there
	deleting bool     // a message with deletions is under way
}

// maxDeletes bounds the references that one message deletes. The owner handles no other message of this
// worker, and takes its lock, while it deletes them.
const maxDeletes = 256

// gatherTime is how long the first deletion for an owner waits for others. Otherwise a worker that creates
// and releases references in a loop sends a message for each release, whose answer delays its next call.
const gatherTime = time.Millisecond

// retryDelay is the time before a message about references that was lost is sent again.
const retryDelay = 500 * time.Millisecond

// ownerOf returns the state of the owner w, which it makes if there is none. The caller holds r.mu,
// and adds a reference or a deletion to it.
func (r *Refs) ownerOf(w worker) *ownerState {
	o := r.owners[w.Incarnation]
	if o == nil {
		o = &ownerState{worker: w}
		o.lease.renewed = time.Now()
		r.owners[w.Incarnation] = o
		r.countLeases()
	}
	return o
}

// forgetIfUnused removes the state of the owner o if nothing refers to it. The caller holds r.mu.
func (r *Refs) forgetIfUnused(o *ownerState) {
	if o.cores == 0 && len(o.deletes) == 0 && !o.deleting && r.owners[o.Incarnation] == o {
		delete(r.owners, o.Incarnation)
		if o.lease.due {
			o.lease.due = false
			r.headers.Add(-1)
		}
		r.countLeases()
	}
}

// newCore returns a reference of this worker to a value of another one, which is not confirmed, with
// one use. The caller holds r.mu.
func (r *Refs) newCore(owner worker, label, forkLabel Label, id forkID) *core {
	c := &core{
		refs: r, owner: r.ownerOf(owner), label: label, forkLabel: forkLabel, id: id, since: time.Now(),
		uses: 1, created: future.New[agent.None](),
	}
	c.owner.cores++
	r.cores[id] = c
	return c
}

// localCore returns a reference on the owner, with one use. It takes over one local reference of v.
func (r *Refs) localCore(v *value) *core {
	return &core{
		refs: r, owner: r.here, label: v.label, forkLabel: v.label, since: time.Now(), uses: 1, value: v, state: confirmed,
	}
}

// isOwned reports whether c refers to a value of this worker.
func (c *core) isOwned() bool { return c.owner == c.refs.here }

// creation returns the future that is done when the owner has confirmed the reference, and fails if
// the creation or the confirmation does.
func (c *core) creation() *agent.Future[agent.None] {
	c.refs.mu.Lock()
	defer c.refs.mu.Unlock()
	if c.created == nil {
		return future.Of(agent.None{})
	}
	return c.created
}

// confirm records that the owner has confirmed the reference, under the lease of that epoch. sent is
// when the request left that the owner has answered.
func (c *core) confirm(epoch uint64, sent time.Time) {
	r := c.refs
	r.mu.Lock()
	err := r.granted(c.owner, epoch, sent)
	c.epoch = epoch
	r.unlock()
	c.settle(err)
}

// settle records that the owner has confirmed the reference, or that it has failed with err. It does
// nothing if one of the two was recorded before.
func (c *core) settle(err error) {
	r := c.refs
	r.mu.Lock()
	created := c.created
	var dropped *value
	if c.state == pending {
		c.state = confirmed
		if err != nil {
			c.state, c.err = failed, err
		} else {
			c.created = nil
		}
		dropped = c.releaseUnused()
	}
	r.notify()
	r.mu.Unlock()
	if dropped != nil {
		dropped.drop()
	}
	switch {
	case created == nil:
	case err != nil:
		_ = created.Fail(err) // fails if it is done
	default:
		_ = created.Set(agent.None{})
	}
}

// use adds a use of the reference, which the caller ends with unuse. The error matches ErrReleased.
func (c *core) use() error {
	c.refs.mu.Lock()
	defer c.refs.mu.Unlock()
	if c.uses == 0 || c.state == deleted {
		return ErrReleased
	}
	c.uses++
	return nil
}

// unuse ends a use of the reference. The last one releases it at the owner.
func (c *core) unuse() {
	r := c.refs
	r.mu.Lock()
	c.uses--
	dropped := c.releaseUnused()
	r.mu.Unlock()
	if dropped != nil {
		dropped.drop()
	}
}

// releaseUnused releases the reference if it has no use any more and nothing about it is under way.
// It returns a value of this worker that has lost its last reference, or nil. The caller holds
// Refs.mu.
func (c *core) releaseUnused() (dropped *value) {
	r := c.refs
	if c.uses > 0 || c.state == pending || c.state == deleted {
		return nil
	}
	c.state = deleted
	if v := c.value; v != nil {
		if c.localID != nil {
			delete(r.forks, *c.localID)
		}
		v.locals--
		return r.dropIfUnused(v)
	}
	if c.isOwned() {
		return nil
	}
	delete(r.cores, c.id)
	r.refused.add(c.id, r.options.Lease) // if the message is repeated that has brought it
	c.owner.cores--
	if !c.dropped && !errors.Is(c.err, ErrOwnerGone) { // the owner may have it, or get it later
		r.enqueueDelete(c.owner, c.id)
	}
	r.forgetIfUnused(c.owner)
	r.notify()
	return nil
}

// enqueueDelete has the owner o told that the fork is released, in one message with others. The
// caller holds r.mu.
func (r *Refs) enqueueDelete(o *ownerState, id forkID) {
	if r.closed || r.owners[o.Incarnation] != o {
		return
	}
	o.deletes = append(o.deletes, id)
	if !o.deleting {
		o.deleting = true
		r.work.Go(func() { r.sendDeletes(o) })
	}
}

// sendDeletes sends the deletions for one owner, one message after the other, until there are none.
// Unless this worker drains, it gathers them for gatherTime. A message that is lost is sent again,
// unless the owner is gone or has fenced this worker.
func (r *Refs) sendDeletes(o *ownerState) {
	for {
		r.mu.Lock()
		if n := len(o.deletes); n > 0 && n < maxDeletes && !r.draining {
			r.mu.Unlock()
			r.pause(gatherTime)
			r.mu.Lock()
		}
		n := min(len(o.deletes), maxDeletes)
		if n == 0 || r.closed {
			o.deleting = false
			r.forgetIfUnused(o)
			r.notify()
			r.mu.Unlock()
			return
		}
		ids := o.deletes[:n:n]
		if o.deletes = o.deletes[n:]; len(o.deletes) == 0 {
			o.deletes = nil
		}
		r.mu.Unlock()
		err := r.persist(o.worker, func(ctx context.Context) error {
			opts := append(r.background(), agent.WithTimeout(r.options.Lease/timeoutShare))
			_, err := deleteMessage.Call(ctx, r.agent, agent.To(o.Name), "", forkList{Owner: o.Incarnation, IDs: ids}, opts...)
			return err
		})
		if err != nil && r.base.Err() == nil {
			r.log.Debug("references could not be deleted", "owner", o.Name, "references", n, "error", err)
		}
	}
}

// background returns the options of messages about references.
func (r *Refs) background() []agent.CallOption {
	return []agent.CallOption{agent.WithBackground(), agent.WithTimeout(r.options.Lease)}
}

// persist calls send until it succeeds, with pauses, and returns nil. It gives up, and returns the
// error of send, once the references are closed, the worker w has left the group or has restarted,
// or nothing was heard from w for two leases: as an owner it has then dropped the references of this
// worker, and as a user it has no lease.
func (r *Refs) persist(w worker, send func(context.Context) error) error {
	limit := 2 * r.options.Lease
	begun := time.Now()
	for pause := retryDelay; ; pause = min(2*pause, r.options.Lease/heartbeatShare) {
		err := send(r.base)
		if err == nil || r.base.Err() != nil || isFinal(err) || r.silence(w, begun) > limit {
			return err
		}
		r.log.Debug("message about references lost", "peer", w.Name, "error", err)
		if !r.pause(pause) {
			return err
		}
	}
}

// pause waits for d and returns true, or false at once if the references are closed.
func (r *Refs) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.base.Done():
		return false
	}
}

// isFinal reports whether err, of a message to a worker, will be the same if the message is sent
// again.
func isFinal(err error) bool {
	return errors.Is(err, agent.ErrNoWorker) || errors.Is(err, agent.ErrRestarted) || errors.Is(err, agent.ErrClosed) ||
		errors.Is(err, agent.ErrRemoved) || errors.Is(err, ErrNoValue) || errors.Is(err, agent.ErrNoFunction)
}

// text describes the reference of c in errors, such as "rref 0.3 to value 0.2 on worker1".
func (c *core) text() string {
	return fmt.Sprintf("rref %v to value %v on %s", c.forkLabel, c.label, c.owner.Name)
}
