package rref

import (
	"context"
	"errors"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// coreState is the state of a reference of this worker.
type coreState byte

const (
	pending   coreState = iota // the owner has not confirmed the reference
	confirmed                  // the owner keeps the value for this reference
	failed                     // the creation, or the confirmation, has failed
	deleted                    // released, and to be deleted at the owner
)

func (s coreState) String() string {
	return [...]string{"pending", "confirmed", "failed", "deleted"}[s]
}

// core is what all copies of one reference in this process share: a fork of the value of another
// worker, or a use of a value of this one.
type core struct {
	refs      *Refs
	owner     worker
	label     Label // of the value
	forkLabel Label
	id        forkID
	parent    forkID                    // of a reference from another user: the fork of that one
	created   *agent.Future[agent.None] // done when the owner has confirmed, or failed

	// Guarded by Refs.mu.
	value   *value // of a reference on the owner, nil on other workers, and before the owner knows it
	state   coreState
	err     error
	localID forkID // on the owner: see Refs.localID
	uses    int    // handles of the application, messages that carry the reference, and fetches
	typ     string // of the value, once known
}

// ownerState is an owner to which this worker has references.
type ownerState struct {
	worker   worker
	deletes  []forkID // to be deleted there
	deleting bool     // a message with deletions is under way
}

// maxDeletes bounds the references that one message deletes.
const maxDeletes = 4096

// retryDelay is the time before a message about references that was lost is sent again.
const retryDelay = 500 * time.Millisecond

func (r *Refs) isOwner(w worker) bool { return w.Incarnation == r.self.Incarnation }

// newCore returns a reference of this worker to a value of another one, which is not confirmed, with
// one use. The caller holds r.mu.
func (r *Refs) newCore(owner worker, label, forkLabel Label, id forkID) *core {
	c := &core{refs: r, owner: owner, label: label, forkLabel: forkLabel, id: id, uses: 1, created: future.New[agent.None]()}
	r.cores[id] = c
	return c
}

// localCore returns a reference on the owner, with one use. It takes over one local reference of v.
func (r *Refs) localCore(v *value) *core {
	c := &core{refs: r, owner: r.self, label: v.label, forkLabel: v.label, uses: 1, value: v, state: confirmed}
	c.created = future.Of(agent.None{})
	return c
}

// settle records that the owner has confirmed the reference, or that it has failed with err.
func (c *core) settle(err error) {
	r := c.refs
	r.mu.Lock()
	if c.state == pending {
		c.state = confirmed
		if err != nil {
			c.state, c.err = failed, err
		}
		c.releaseUnused()
	}
	r.notify()
	r.mu.Unlock()
	if err != nil {
		_ = c.created.Fail(err) // fails if it is done
	} else {
		_ = c.created.Set(agent.None{})
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
	was := c.state
	c.state = deleted
	if v := c.value; v != nil {
		delete(r.forks, c.localID)
		v.locals--
		return r.dropIfUnused(v)
	}
	if r.isOwner(c.owner) {
		return nil
	}
	delete(r.cores, c.id)
	if was == confirmed || !errors.Is(c.err, ErrNoValue) {
		r.enqueueDelete(c.owner, c.id)
	}
	r.notify()
	return nil
}

// enqueueDelete has the owner told that the fork is released, in one message with others. The caller
// holds r.mu.
func (r *Refs) enqueueDelete(owner worker, id forkID) {
	if r.closed {
		return
	}
	o := r.owners[owner.Incarnation]
	if o == nil {
		o = &ownerState{worker: owner}
		r.owners[owner.Incarnation] = o
	}
	o.deletes = append(o.deletes, id)
	if !o.deleting {
		o.deleting = true
		r.work.Go(func() { r.sendDeletes(o) })
	}
}

// sendDeletes sends the deletions for one owner, one message after the other, until there are none.
// A message that is lost is sent again, as long as the owner is a member of the group.
func (r *Refs) sendDeletes(o *ownerState) {
	for {
		r.mu.Lock()
		n := min(len(o.deletes), maxDeletes)
		if n == 0 || r.closed {
			o.deleting = false
			delete(r.owners, o.worker.Incarnation)
			r.notify()
			r.mu.Unlock()
			return
		}
		ids := o.deletes[:n:n]
		o.deletes = o.deletes[n:]
		r.mu.Unlock()
		r.persist(o.worker, func(ctx context.Context) error {
			_, err := deleteMessage.Call(ctx, r.agent, agent.To(o.worker.Name), "", forkList{Owner: o.worker.Incarnation, IDs: ids}, r.background()...)
			return err
		})
	}
}

// background returns the options of messages about references.
func (r *Refs) background() []agent.CallOption {
	return []agent.CallOption{agent.WithBackground(), agent.WithTimeout(r.options.Lease)}
}

// persist calls send until it succeeds, with pauses, and returns nil. It gives up, and returns the
// error of send, once the worker has left the group or has restarted, or the references are closed.
func (r *Refs) persist(w worker, send func(context.Context) error) error {
	for pause := retryDelay; ; pause = min(2*pause, r.options.Lease) {
		err := send(r.base)
		if err == nil || r.base.Err() != nil || isFinal(err) {
			return err
		}
		r.log.Debug("message about references lost", "peer", w.Name, "error", err)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-r.base.Done():
			t.Stop()
			return err
		}
	}
}

// isFinal reports whether err, of a message to a worker, will be the same if the message is sent
// again.
func isFinal(err error) bool {
	return errors.Is(err, agent.ErrNoWorker) || errors.Is(err, agent.ErrRestarted) || errors.Is(err, agent.ErrClosed) ||
		errors.Is(err, agent.ErrRemoved) || errors.Is(err, ErrNoValue) || errors.Is(err, agent.ErrNoFunction)
}
