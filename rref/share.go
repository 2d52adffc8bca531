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

// A reference in a message is one of three kinds.
const (
	// toOwner: the receiver is the owner. The fork is that of the sender, or a temporary one.
	toOwner = 1 + iota

	// fromOwner: the sender is the owner, and has added a fork for the receiver.
	fromOwner

	// betweenUsers: the receiver asks the owner for a fork, by that of the sender, the parent. The
	// sender keeps its own until it knows that the owner has confirmed.
	betweenUsers
)

// messageKey is the key of the message, an *agent.Message, in the state of its encoder or decoder.
type messageKey struct{}

// arrivedKey is the key of the references that a message has brought, an *arrived.
type arrivedKey struct{}

// arrived is the references in a message that was received.
type arrived struct {
	cores []*core
	forks []*core // of these: those for which the owner is asked
	owned []*core // of these: those on the owner whose fork is not known yet
}

// child is a reference that was sent to another worker, and for which this worker keeps its own, the
// parent, or a fork as the owner, until it knows that the other one has got it.
type child struct {
	to     worker
	parent *core // nil on the owner
}

// encoding makes m known to the encodings of references in it.
func (r *Refs) encoding(_ context.Context, m *agent.Message) error {
	m.SetState(messageKey{}, m)
	return nil
}

// encode encodes the reference in the message of e.
func (h *handle) encode(e *codec.Encoder) error {
	m, _ := e.State(messageKey{}).(*agent.Message)
	if m == nil {
		return ErrEncoding
	}
	c, err := h.use() // until the message has ended
	if err != nil {
		return err
	}
	if c.refs.agent != m.Agent() {
		c.unuse()
		return fmt.Errorf("%w: %v belongs to another agent", ErrEncoding, h)
	}
	if err := c.checkUsable(); err != nil {
		c.unuse()
		return err
	}
	r, to := c.refs, m.Incarnation()
	e.WriteBytes(c.owner.Incarnation[:])
	e.WriteString(c.owner.Name)
	e.WriteUint(uint64(c.owner.Rank))
	e.WriteUint(uint64(c.label.CreatedOn))
	e.WriteUint(c.label.Local)
	switch {
	case r.isOwner(c.owner):
		return r.encodeOwned(e, m, c)
	case to == c.owner.Incarnation:
		e.WriteUint(toOwner)
		e.WriteBytes(c.id[:])
		m.OnEnd(func(agent.MessageEnd) { c.unuse() })
		return nil
	}
	id, label := newForkID(), r.newLabel()
	e.WriteUint(betweenUsers)
	e.WriteBytes(id[:])
	e.WriteBytes(c.id[:])
	e.WriteUint(uint64(label.CreatedOn))
	e.WriteUint(label.Local)
	r.mu.Lock()
	r.children[id] = &child{worker{Name: m.Peer.Name, Rank: m.Peer.Rank, Incarnation: to}, c}
	r.mu.Unlock()
	m.OnEnd(r.childEnd(id, m.Kind))
	return nil
}

// encodeOwned encodes c, a reference on the owner, for the other end of m, and ends the use of c.
func (r *Refs) encodeOwned(e *codec.Encoder, m *agent.Message, c *core) error {
	defer c.unuse()
	id, to := newForkID(), m.Incarnation()
	r.mu.Lock()
	defer r.mu.Unlock()
	v := c.value
	if v == nil {
		return fmt.Errorf("%w: %v is not known yet", ErrNoValue, c.label)
	}
	if to == r.self.Incarnation {
		f := &fork{value: v, pins: 1, gone: true}
		r.forks[id] = f
		v.forks++
		e.WriteUint(toOwner)
		e.WriteBytes(id[:])
		m.OnEnd(func(agent.MessageEnd) { r.endPin(id, f) })
		return nil
	}
	f, err := r.addFork(v, id, m.Peer, to)
	if err != nil {
		return err
	}
	f.pins++
	label := Label{r.self.Rank, r.lastID}
	r.lastID++
	e.WriteUint(fromOwner)
	e.WriteBytes(id[:])
	e.WriteUint(uint64(label.CreatedOn))
	e.WriteUint(label.Local)
	r.children[id] = &child{to: worker{Name: m.Peer.Name, Rank: m.Peer.Rank, Incarnation: to}}
	ended := r.childEnd(id, m.Kind)
	m.OnEnd(func(end agent.MessageEnd) {
		ended(end)
		r.endPin(id, f)
	})
	return nil
}

func (r *Refs) endPin(id forkID, f *fork) {
	r.mu.Lock()
	dropped := r.unpin(id, f)
	r.mu.Unlock()
	if dropped != nil {
		dropped.drop()
	}
}

// childEnd returns the function that runs when the message of a reference has ended, of the kind k.
// The answer to a request shows that the reference has arrived and was confirmed, or will never be; a
// message that was not sent, that it does not exist. In all other cases the receiver is asked: that
// of a reply after a lease, since it should accept the reference by itself.
func (r *Refs) childEnd(id forkID, k agent.Kind) func(agent.MessageEnd) {
	return func(end agent.MessageEnd) {
		switch {
		case end.Outcome == agent.MessageAnswered:
			r.accepted(id)
		case end.Outcome == agent.MessageUnsent:
			r.neverArrived(id)
		case k == agent.KindRequest:
			r.spawn(func() { r.ask(id) })
		default:
			r.mu.Lock()
			_, open := r.children[id]
			if open && !r.closed {
				r.work.Go(func() {
					t := time.NewTimer(r.options.Lease)
					defer t.Stop()
					select {
					case <-t.C:
						r.ask(id)
					case <-r.base.Done():
					}
				})
			}
			r.mu.Unlock()
		}
	}
}

// accepted ends the wait for a reference that was sent: the receiver has it.
func (r *Refs) accepted(id forkID) {
	r.mu.Lock()
	ch := r.children[id]
	delete(r.children, id)
	r.notify()
	r.mu.Unlock()
	if ch != nil && ch.parent != nil {
		ch.parent.unuse()
	}
}

// neverArrived ends the wait for a reference that was sent: the receiver does not have it, and will
// refuse it.
func (r *Refs) neverArrived(id forkID) {
	r.mu.Lock()
	ch := r.children[id]
	delete(r.children, id)
	var dropped *value
	if f := r.forks[id]; ch != nil && ch.parent == nil && f != nil {
		dropped = r.deleteFork(id, f.holder.incarnation)
	}
	r.notify()
	r.mu.Unlock()
	if ch != nil && ch.parent != nil {
		ch.parent.unuse()
	}
	if dropped != nil {
		dropped.drop()
	}
}

// ask asks the receiver of a reference whether it has it. The receiver refuses the reference from
// then on if it has not.
func (r *Refs) ask(id forkID) {
	r.mu.Lock()
	ch := r.children[id]
	r.mu.Unlock()
	if ch == nil {
		return // it was accepted meanwhile
	}
	has := []bool{false}
	err := r.persist(ch.to, func(ctx context.Context) (err error) {
		has, err = askMessage.Call(ctx, r.agent, agent.To(ch.to.Name), "", forkList{Owner: ch.to.Incarnation, IDs: []forkID{id}}, r.background()...)
		return err
	})
	if err == nil && len(has) == 1 && has[0] {
		r.accepted(id)
		return
	}
	r.neverArrived(id) // or the receiver is no longer there
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
	kind := in.uint()
	id := forkID(in.id())
	a := arrivedIn(d, m)
	var c *core
	switch kind {
	case toOwner:
		if in.err == nil && !r.isOwner(owner) {
			return nil, fmt.Errorf("%w: a reference to a value of %s", ErrNoValue, owner.Name)
		}
		c = &core{refs: r, owner: r.self, label: label, forkLabel: label, id: id, uses: 1, created: future.New[agent.None]()}
		a.owned = append(a.owned, c)
	case fromOwner:
		forkLabel := Label{in.int(), in.uint()}
		if in.err != nil {
			return nil, in.err
		}
		if m.Incarnation() != owner.Incarnation {
			return nil, fmt.Errorf("%w: %s is not the owner of a value of %s", agent.ErrProtocol, m.Peer.Name, owner.Name)
		}
		if c, err = r.receiveCore(owner, label, forkLabel, id); err != nil {
			return nil, err
		}
	case betweenUsers:
		parent := forkID(in.id())
		forkLabel := Label{in.int(), in.uint()}
		if in.err != nil {
			return nil, in.err
		}
		if r.isOwner(owner) {
			return nil, fmt.Errorf("%w: a reference to a value of this worker, as if it were of another one", agent.ErrProtocol)
		}
		if c, err = r.receiveCore(owner, label, forkLabel, id); err != nil {
			return nil, err
		}
		c.parent = parent
		a.forks = append(a.forks, c)
	default:
		return nil, errors.Join(in.err, fmt.Errorf("%w: a reference of kind %d", agent.ErrProtocol, kind))
	}
	if in.err != nil {
		return nil, in.err
	}
	a.cores = append(a.cores, c)
	return c, nil
}

// arrivedIn returns the references that m, the message of d, has brought so far.
func arrivedIn(d *codec.Decoder, m *agent.Message) *arrived {
	a, _ := d.State(arrivedKey{}).(*arrived)
	if a == nil {
		a = &arrived{}
		d.SetState(arrivedKey{}, a)
		m.OnEnd(a.ended)
	}
	return a
}

// receiveCore returns the reference of this worker with that id, with one more use: the one that
// there is, if the message was repeated, or else a new one, which is not confirmed. The error matches
// ErrNoValue if this worker has declared that the reference has not arrived.
func (r *Refs) receiveCore(owner worker, label, forkLabel Label, id forkID) (*core, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, refused := r.refused[id]; refused {
		return nil, fmt.Errorf("%w: it came too late", ErrShared)
	}
	if c := r.cores[id]; c != nil {
		c.uses++
		return c, nil
	}
	return r.newCore(owner, label, forkLabel, id), nil
}

// decoded asks the owners of the references that m has brought to confirm them. The handler of a
// request starts when all have. For a reply, the sender is told.
func (r *Refs) decoded(_ context.Context, m *agent.Message) error {
	a, _ := m.State(arrivedKey{}).(*arrived)
	if a == nil {
		return nil
	}
	byOwner := map[worker][]*core{}
	for _, c := range a.forks {
		byOwner[c.owner] = append(byOwner[c.owner], c)
	}
	asked := map[*core]bool{}
	for _, c := range a.forks {
		asked[c] = true
	}
	var accept []forkID
	for _, c := range a.cores {
		if c.value == nil && !asked[c] && !r.isOwner(c.owner) { // of the owner, which keeps the value already
			c.settle(nil)
			accept = append(accept, c.id)
		}
	}
	for owner, cores := range byOwner {
		r.spawn(func() { r.requestForks(owner, cores) })
	}
	for _, c := range a.owned {
		r.find(r.base, c.id, func(v *value, err error) { c.found(v, err) })
	}
	if m.Kind == agent.KindRequest {
		m.Hold(func(ctx context.Context) error {
			for _, c := range a.cores {
				if _, err := c.created.Wait(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		return nil
	}
	from := worker{Name: m.Peer.Name, Rank: m.Peer.Rank, Incarnation: m.Incarnation()}
	r.spawn(func() { r.accept(from, accept, a.forks) })
	return nil
}

// found sets the value of c, a reference on the owner, once the fork that brought it is known.
func (c *core) found(v *value, err error) {
	if v != nil {
		c.refs.mu.Lock()
		c.value = v
		v.locals++
		c.refs.mu.Unlock()
	}
	c.settle(err)
}

// requestForks asks owner to confirm cores, references that other workers have sent.
func (r *Refs) requestForks(owner worker, cores []*core) {
	list := forkRequest{Owner: owner.Incarnation}
	for _, c := range cores {
		list.Forks = append(list.Forks, forkPair{Child: c.id, Parent: c.parent})
	}
	var failures []string
	err := r.persist(owner, func(ctx context.Context) (err error) {
		failures, err = forkMessage.Call(ctx, r.agent, agent.To(owner.Name), "", list, r.background()...)
		return err
	})
	if err == nil && len(failures) != len(cores) {
		err = fmt.Errorf("%w: %d answers about %d references", agent.ErrProtocol, len(failures), len(cores))
	}
	for i, c := range cores {
		switch {
		case err != nil:
			c.settle(fmt.Errorf("rref: %s has not confirmed the reference to its value %v: %w", owner.Name, c.label, err))
		case failures[i] != "":
			c.settle(fmt.Errorf("%w: %s: %s", ErrNoValue, owner.Name, failures[i]))
		default:
			c.settle(nil)
		}
	}
}

// accept tells the worker from that this one has the references in ids, and those of cores once
// their owners have confirmed them.
func (r *Refs) accept(from worker, ids []forkID, cores []*core) {
	for _, c := range cores {
		if _, err := c.created.Wait(r.base); err == nil {
			ids = append(ids, c.id)
		}
	}
	if len(ids) == 0 {
		return
	}
	_ = r.persist(from, func(ctx context.Context) error {
		_, err := acceptMessage.Call(ctx, r.agent, agent.To(from.Name), "", forkList{Owner: from.Incarnation, IDs: ids}, r.background()...)
		return err
	})
}

// ended is called when the message with these references has ended. If it could not be decoded,
// nothing else has them.
func (a *arrived) ended(end agent.MessageEnd) {
	if end.Err == nil {
		return
	}
	for _, c := range a.cores {
		c.settle(fmt.Errorf("%w: the message was not decoded", ErrShared))
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
	if b, in.err = in.d.ReadBytes(); in.err == nil && copy(id[:], b) != len(id) {
		in.err = fmt.Errorf("%w: an id of %d bytes", agent.ErrProtocol, len(b))
	}
	return id
}
