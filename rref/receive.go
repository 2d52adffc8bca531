package rref

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// arrivedKey is the key of the references that a message has brought, an *arrived.
type arrivedKey struct{}

// arrived is the references in a message that was received.
type arrived struct {
	refs *Refs
	from worker
	kind agent.Kind
	all  []arrivedRef
}

// arrivedRef is one of these references.
type arrivedRef struct {
	*core
	kind  uint64
	child forkID // to be accepted
	proof forkID // the fork by which the owner knows the value
	epoch uint64 // of the lease of that fork, or for fromOwner of the new one
}

// decodeRef decodes a reference from the message of d, and returns it with one use.
func decodeRef(d *codec.Decoder) (*core, error) {
	m, _ := d.State(messageKey{}).(*agent.Message)
	if m == nil {
		return nil, ErrEncoding
	}
	r, err := Of(m.Agent())
	if err != nil {
		return nil, err
	}
	in := input{d: d}
	owner := worker{Incarnation: in.id(), Name: in.text(), Rank: in.int()}
	label := Label{in.int(), in.uint()}
	ref := arrivedRef{kind: in.uint(), child: in.id(), proof: in.id(), epoch: in.uint()}
	forkLabel := Label{in.int(), in.uint()}
	if in.err != nil {
		return nil, in.err
	}
	here := owner.Incarnation == r.self.Incarnation
	switch {
	case ref.kind == toOwner && !here:
		return nil, fmt.Errorf("%w: a reference to a value of %s", ErrNoValue, owner.Name)
	case ref.kind == fromOwner && m.Incarnation() != owner.Incarnation:
		return nil, fmt.Errorf("%w: %s is not the owner of a value of %s", agent.ErrProtocol, m.Peer.Name, owner.Name)
	case ref.kind != toOwner && here:
		return nil, fmt.Errorf("%w: a reference to a value of this worker, as if it were of another one", agent.ErrProtocol)
	case ref.kind < toOwner || ref.kind > inKeptReply:
		return nil, fmt.Errorf("%w: a reference of kind %d", agent.ErrProtocol, ref.kind)
	}
	if err := r.receiveCore(&ref, owner, label, forkLabel); err != nil {
		return nil, err
	}
	a, _ := d.State(arrivedKey{}).(*arrived)
	if a == nil {
		a = &arrived{refs: r, from: worker{Name: m.Peer.Name, Rank: m.Peer.Rank, Incarnation: m.Incarnation()}, kind: m.Kind}
		d.SetState(arrivedKey{}, a)
		m.OnEnd(a.ended)
	}
	a.all = append(a.all, ref)
	return ref.core, nil
}

// receiveCore sets the core of a reference that has arrived, with one more use: the one that there
// is, if the message was repeated, or else a new one, which is not confirmed. The error matches
// ErrShared if this worker has declared that the reference has not arrived, and agent.ErrProtocol if its id
// is that of a reference to another worker.
func (r *Refs) receiveCore(ref *arrivedRef, owner worker, label, forkLabel Label) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch c := r.cores[ref.child]; {
	case r.refused.has(ref.child):
		return fmt.Errorf("%w: it came too late", ErrShared)
	case c != nil && c.owner.Incarnation != owner.Incarnation:
		return fmt.Errorf("%w: a reference with the id of another one", agent.ErrProtocol)
	case ref.kind == toOwner:
		ref.core = &core{
			refs: r, owner: r.here, label: label, forkLabel: label, since: time.Now(), uses: 1, created: future.New[agent.None](),
		}
		r.arriving[ref.child] = ref.core
	case ref.kind == inKeptReply:
		ref.core = r.newCore(owner, label, forkLabel, newForkID())
		r.arriving[ref.child] = ref.core
	case c != nil:
		c.uses++
		ref.core = c
	default:
		ref.core = r.newCore(owner, label, forkLabel, ref.child)
	}
	return nil
}

// maxOwners bounds the owners of the references in one message that must confirm them: each takes a
// goroutine.
const maxOwners = 1024

// decoded has the owners confirm the references that m has brought. The handler of a request starts
// when all have. The references in a reply are accepted. The error matches agent.ErrProtocol: there are
// too many owners.
func (r *Refs) decoded(_ context.Context, m *agent.Message) error {
	a, _ := m.State(arrivedKey{}).(*arrived)
	if a == nil {
		return nil
	}
	byOwner := map[*ownerState][]arrivedRef{}
	for _, ref := range a.all {
		switch ref.kind {
		case toOwner:
			r.findOwned(ref, a.from)
		case fromOwner:
			ref.confirm(ref.epoch, time.Now().Add(-r.options.Lease/grantedByMessage))
		default:
			byOwner[ref.owner] = append(byOwner[ref.owner], ref)
		}
	}
	if len(byOwner) > maxOwners {
		return fmt.Errorf("%w: references to values of %d workers in one message, at most %d", agent.ErrProtocol, len(byOwner), maxOwners)
	}
	for owner, refs := range byOwner {
		r.spawn(func() { r.requestForks(owner, refs) })
	}
	if m.Kind == agent.KindRequest {
		m.Hold(func(ctx context.Context) error {
			for _, ref := range a.all {
				if _, err := ref.creation().Wait(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		return nil
	}
	r.spawn(a.accept)
	return nil
}

// findOwned sets the value of a reference on the owner, this worker, once the fork is known by which
// the worker from has sent it.
func (r *Refs) findOwned(ref arrivedRef, from worker) {
	r.mu.Lock()
	err := r.checkLease(ref.epoch)
	r.mu.Unlock()
	if err != nil {
		ref.settle(err)
		return
	}
	r.find(r.base, ref.proof, from.Incarnation, func(v *value, err error) {
		if v != nil {
			r.mu.Lock()
			if _, kept := r.values[v]; kept {
				ref.value = v
				v.locals++
				r.addLocalFork(ref.core)
			} else {
				err = fmt.Errorf("%w: it was released", ErrNoValue)
			}
			r.mu.Unlock()
		}
		ref.settle(err)
	})
}

// requestForks asks owner to confirm refs, references that other workers have sent.
func (r *Refs) requestForks(owner *ownerState, refs []arrivedRef) {
	list := forkRequest{Owner: owner.Incarnation}
	for _, ref := range refs {
		list.Forks = append(list.Forks, forkPair{Child: ref.id, Parent: ref.proof, Epoch: ref.epoch})
	}
	var reply forkReply
	var sent time.Time
	// The owner waits for a parent for a lease, and must be able to reply after that.
	opts := append(r.background(), agent.WithTimeout(5*r.options.Lease/4))
	err := r.persist(owner.worker, func(ctx context.Context) (err error) {
		r.mu.Lock()
		sent, list.Epoch = time.Now(), owner.lease.epoch
		r.mu.Unlock()
		reply, err = forkMessage.Call(ctx, r.agent, agent.To(owner.Name), "", list, opts...)
		r.checkFenced(owner, err)
		return err
	})
	if err == nil && len(reply.Failures) != len(refs) {
		err = fmt.Errorf("%w: %d answers about %d references", agent.ErrProtocol, len(reply.Failures), len(refs))
	}
	for i, ref := range refs {
		switch {
		case err != nil:
			ref.settle(fmt.Errorf("rref: %s has not confirmed the reference to its value %v: %w", owner.Name, ref.label, err))
		case reply.Failures[i].Reason != "":
			ref.settle(reply.Failures[i].err(owner.Name))
		default:
			ref.confirm(reply.Epoch, sent)
		}
	}
}

// accept tells the sender of a reply that this worker has its references, once their owners have
// confirmed them or will never do so.
func (a *arrived) accept() {
	r := a.refs
	ids := make([]forkID, len(a.all))
	for i, ref := range a.all {
		_, _ = ref.creation().Wait(r.base)
		ids[i] = ref.child
	}
	r.forgetArriving(ids)
	if a.from.Incarnation == r.self.Incarnation {
		for _, id := range ids {
			r.accepted(id)
		}
		return
	}
	err := r.persist(a.from, func(ctx context.Context) error {
		_, err := acceptMessage.Call(ctx, r.agent, agent.To(a.from.Name), "", forkList{Owner: a.from.Incarnation, IDs: ids}, r.background()...)
		return err
	})
	if err != nil {
		r.log.Debug("references were not accepted", "sender", a.from.Name, "references", len(ids), "error", err)
	}
}

func (r *Refs) forgetArriving(ids []forkID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		delete(r.arriving, id)
	}
}

// ended is called when the message with these references has ended. If it could not be decoded,
// nothing else has them.
func (a *arrived) ended(end agent.MessageEnd) {
	if end.Err != nil {
		for _, ref := range a.all {
			ref.settle(fmt.Errorf("%w: the message was not decoded", ErrShared))
		}
	}
	switch {
	case a.kind == agent.KindRequest:
		ids := make([]forkID, len(a.all))
		for i, ref := range a.all {
			ids[i] = ref.child
		}
		a.refs.forgetArriving(ids)
	case end.Err != nil:
		a.refs.spawn(a.accept)
	}
}

// input reads the parts of a reference from a decoder, until one is missing; err is then set.
type input struct {
	d   *codec.Decoder
	err error
}

func (in *input) uint() (v uint64) {
	if in.err == nil {
		v, in.err = in.d.ReadUint()
	}
	return v
}

func (in *input) int() int {
	v := in.uint()
	if v > 1<<31-1 {
		in.err = errors.Join(in.err, fmt.Errorf("%w: the number %d in a reference", agent.ErrProtocol, v))
		return 0
	}
	return int(v)
}

func (in *input) text() (s string) {
	if in.err == nil {
		s, in.err = in.d.ReadString()
	}
	return s
}

func (in *input) id() (id [16]byte) {
	if in.err != nil {
		return id
	}
	var b []byte
	if b, in.err = in.d.ReadBytes(); in.err == nil && len(b) != len(id) {
		in.err = fmt.Errorf("%w: an id of %d bytes", agent.ErrProtocol, len(b))
	}
	copy(id[:], b)
	return id
}
