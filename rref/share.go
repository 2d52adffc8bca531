package rref

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
)

// A reference in a message is one of four kinds.
const (
	// toOwner: the receiver is the owner. The fork is that of the sender, or a temporary one.
	toOwner = 1 + iota

	// fromOwner: the sender is the owner, and has added a fork for the receiver.
	fromOwner

	// betweenUsers: the receiver asks the owner for a fork, by that of the sender, the parent.
	betweenUsers

	// inKeptReply is as betweenUsers, but the receiver chooses the id of its fork, because the message
	// may arrive several times. The sender may be the owner; the parent is then a temporary fork.
	inKeptReply
)

// messageKey is the key of the message, an *agent.Message, in the state of its encoder or decoder.
type messageKey struct{}

// child is a reference that was sent to another worker. Until it is known that the receiver has
// accepted it, or never will, the sender keeps what the receiver needs: its own reference, or as the
// owner a fork. The id of the child, which the receiver accepts, is also that of its fork for
// fromOwner and betweenUsers.
type child struct {
	to     worker
	parent *core // with a use for the child; nil on the owner
	fork   *fork // on the owner
	forkID forkID
	kept   bool // it is in a reply that may be kept and sent again
	asking bool // the receiver is asked, because this worker drains
}

// encoding makes m known to the encodings of references in it.
func (r *Refs) encoding(_ context.Context, m *agent.Message) error {
	m.SetState(messageKey{}, m)
	r.addLeaseHeader(m)
	return nil
}

// encode encodes the reference in the message of e: the owner, the label of the value, the kind, the
// child, the fork that proves the right to have it, the epoch of its lease, and the label of the
// receiver's reference.
func (h *handle) encode(e *codec.Encoder) error {
	m, _ := e.State(messageKey{}).(*agent.Message)
	if m == nil {
		return ErrEncoding
	}
	c, err := h.use()
	if err != nil {
		return err
	}
	r := c.refs
	if err := c.checkUsable(); err != nil || r.agent != m.Agent() {
		c.unuse()
		if err == nil {
			err = fmt.Errorf("%w: %v belongs to another agent", ErrEncoding, h)
		}
		return err
	}
	id, label := newForkID(), r.newLabel()
	ch := &child{to: worker{Name: m.Peer.Name, Rank: m.Peer.Rank, Incarnation: m.Incarnation()}, kept: m.IsKept()}
	var kind, epoch uint64
	switch proof := c.id; {
	case c.isOwned():
		kind, epoch, err = r.addOwnedChild(ch, c, id, m.IsKept())
		c.unuse()
		if err != nil {
			return err
		}
	default:
		ch.parent, ch.forkID = c, proof
		r.mu.Lock()
		epoch = c.epoch
		if m.IsKept() {
			c.uses++
		}
		r.children[id] = ch
		r.mu.Unlock()
		switch {
		case ch.to.Incarnation == c.owner.Incarnation:
			kind = toOwner
		case m.IsKept():
			kind = inKeptReply
		default:
			kind = betweenUsers
		}
	}
	m.OnEnd(r.childEnd(id, ch, m.Kind, m.IsKept()))
	e.WriteBytes(c.owner.Incarnation[:])
	e.WriteString(c.owner.Name)
	for _, n := range []uint64{uint64(c.owner.Rank), uint64(c.label.CreatedOn), c.label.Local, kind} {
		e.WriteUint(n)
	}
	e.WriteBytes(id[:])
	e.WriteBytes(ch.forkID[:])
	for _, n := range []uint64{epoch, uint64(label.CreatedOn), label.Local} {
		e.WriteUint(n)
	}
	return nil
}

// addOwnedChild adds the child ch with that id, of c, a reference on the owner, with a fork: that of
// the receiver, or a temporary one for a message of this worker to itself and for a reply that is
// kept. It returns the kind of the reference in the message and the epoch of the receiver's lease. The
// error matches ErrNoValue or is that of addFork.
func (r *Refs) addOwnedChild(ch *child, c *core, id forkID, kept bool) (kind, epoch uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := c.value
	if v == nil {
		return 0, 0, fmt.Errorf("%w: %v is not known yet", ErrNoValue, c.label)
	}
	if ch.to.Incarnation != r.self.Incarnation && !kept {
		if ch.fork, err = r.addFork(v, id, ch.to); err != nil {
			return 0, 0, err
		}
		ch.forkID = id
		r.children[id] = ch
		return fromOwner, ch.fork.holder.epoch, nil
	}
	ch.fork, ch.forkID = &fork{value: v, pins: 1, gone: true}, newForkID()
	if kept {
		ch.fork.pins++
	}
	r.forks[ch.forkID] = ch.fork
	v.forks++
	r.children[id] = ch
	if ch.to.Incarnation == r.self.Incarnation {
		return toOwner, 0, nil
	}
	return inKeptReply, 0, nil
}

// childEnd returns the function that runs when the message of the child with that id has ended, of
// the kind k. The answer to a request shows that the receiver needs the parent no longer, and a message
// that was not sent, that the reference does not exist. In all other cases the receiver is asked: that of
// a reply after a lease, since it should accept the reference unasked; that of an answered request if it
// has a fork, since it may not have decoded it. A kept reply needs the parent, too, until it has ended.
func (r *Refs) childEnd(id forkID, ch *child, k agent.Kind, kept bool) func(agent.MessageEnd) {
	return func(end agent.MessageEnd) {
		if kept {
			r.endKept(ch)
		}
		switch {
		case end.Outcome == agent.MessageUnsent:
			r.neverArrived(id)
		case k != agent.KindRequest:
			r.askLater(id, r.options.Lease)
		case end.Outcome == agent.MessageAnswered && (ch.fork == nil || ch.fork.holder == nil):
			r.accepted(id)
		default:
			r.askLater(id, 0)
		}
	}
}

// endKept ends the use of the parent of ch by a kept reply.
func (r *Refs) endKept(ch *child) {
	if ch.parent != nil {
		ch.parent.unuse()
	} else {
		r.unpin(ch.forkID, ch.fork)
	}
}

// takeChild removes the child with that id from those that are not accepted, and returns it. It
// returns nil if it is not there.
func (r *Refs) takeChild(id forkID) *child {
	r.mu.Lock()
	defer r.mu.Unlock()
	ch := r.children[id]
	delete(r.children, id)
	r.notify()
	return ch
}

// accepted ends the wait for a child: the receiver has the reference.
func (r *Refs) accepted(id forkID) {
	if ch := r.takeChild(id); ch != nil && (ch.parent != nil || ch.fork.holder == nil) {
		r.endKept(ch)
	}
}

// neverArrived ends the wait for a child: the receiver does not have the reference, and will refuse
// it.
func (r *Refs) neverArrived(id forkID) {
	ch := r.takeChild(id)
	switch {
	case ch == nil:
	case ch.parent != nil || ch.fork.holder == nil:
		r.endKept(ch)
	default:
		r.mu.Lock()
		var dropped *value
		if r.forks[id] == ch.fork && !ch.fork.gone {
			ch.fork.gone = true
			dropped = r.removeIfUnused(id, ch.fork)
		}
		r.mu.Unlock()
		if dropped != nil {
			dropped.drop()
		}
	}
}
