package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
)

// peers is the table of the members of the group, as this worker last read them.
type peers struct {
	mu     sync.RWMutex
	byName map[To]*peer
	byRank map[int]*peer
}

func (t *peers) find(to To) *peer {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if rank, ok := to.rank(); ok {
		return t.byRank[rank]
	}
	return t.byName[to]
}

// members returns all members, ordered by rank. The slice belongs to the caller.
func (t *peers) members() []*peer {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.SortedFunc(maps.Values(t.byName), func(x, y *peer) int { return x.info.Rank - y.info.Rank })
}

// workers returns the members that are no clients, ordered by rank. The slice belongs to the
// caller.
func (t *peers) workers() []*peer { return slices.DeleteFunc(t.members(), (*peer).isClient) }

// set replaces the table of peers by the list that members returns. A new incarnation of a member
// gets a new peer, made by create; other members keep their peers. set returns the peers that are
// no longer in the table.
//
// members and create are called with t.mu held: otherwise the slower of two callers could store an
// older list.
func (t *peers) set(members func() []roster.Member, create func(roster.Member) *peer) (removed []*peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.byName
	t.byName, t.byRank = map[To]*peer{}, map[int]*peer{}
	for _, m := range members() {
		p := old[To(m.Name)]
		if p == nil || p.member.Incarnation != m.Incarnation {
			p = create(m)
		}
		t.byName[To(m.Name)], t.byRank[m.Rank] = p, p
	}
	for name, p := range old {
		if t.byName[name] != p {
			removed = append(removed, p)
		}
	}
	return removed
}

// peer returns the worker that to addresses. If the worker is unknown, peer reads the members of a
// dynamic group from the store again, since the worker may have just joined. The error matches
// ErrNoWorker if there is no such worker, ErrClosed if the agent is closed, or is that of refresh.
func (a *Agent) peer(ctx context.Context, to To) (*peer, error) {
	if p := a.peers.find(to); p != nil {
		return p, nil
	}
	if a.isClosed() {
		return nil, ErrClosed
	}
	if err := a.refresh(ctx); err != nil {
		return nil, err
	}
	if p := a.peers.find(to); p != nil {
		return p, nil
	}
	if rank, ok := to.rank(); ok {
		return nil, &UnknownWorkerError{Self: a.self, Rank: rank, ByRank: true}
	}
	return nil, &UnknownWorkerError{Self: a.self, Name: string(to)}
}

// peerByIdentity returns the member with this name, rank and incarnation. If it does not know such
// a member, it reads the members of a dynamic group from the store again. The error matches
// ErrRestarted if the member of this name has another incarnation or rank, ErrNoWorker if no member
// has the name, or is that of refresh.
func (a *Agent) peerByIdentity(ctx context.Context, id wire.Identity) (*peer, error) {
	known := func() *peer {
		if p := a.peers.find(To(id.Name)); p != nil && p.identity() == id {
			return p
		}
		return nil
	}
	if p := known(); p != nil {
		return p, nil
	}
	if err := a.refresh(ctx); err != nil {
		return nil, err
	}
	if p := known(); p != nil {
		return p, nil
	}
	if a.peers.find(To(id.Name)) != nil {
		return nil, fmt.Errorf("%w: worker %s is known as another incarnation", ErrRestarted, id.Name)
	}
	return nil, fmt.Errorf("%w: %s does not know a worker %s", ErrNoWorker, a.self, id.Name)
}

// refresh reads the members of a dynamic group from the store and updates the peers; it does
// nothing in a static group. Since that may take long, a handler whose context is ctx has no slot
// until refresh returns, and a leader yields. The error matches ErrRemoved if this worker is no
// member any more, or is that of ctx or of the store.
func (a *Agent) refresh(ctx context.Context) error {
	if a.IsStatic() {
		return nil
	}
	defer beginWait(ctx)()
	if err := a.roster.Refresh(ctx); err != nil {
		return err
	}
	a.update()
	return nil
}

// WorkerInfos returns the workers of the group, without clients, ordered by rank, as this agent
// last read them from the store, with the field Lost as this agent knows it. The slice belongs to
// the caller.
func (a *Agent) WorkerInfos() []WorkerInfo {
	var infos []WorkerInfo
	a.members.mu.Lock()
	defer a.members.mu.Unlock()
	for _, p := range a.peers.workers() {
		infos = append(infos, p.currentInfo())
	}
	return infos
}

// currentInfo returns the name and rank of the peer, with Lost set if the peer is lost or has left.
// The caller holds the mutex of peerStates.
func (p *peer) currentInfo() WorkerInfo {
	info := p.info
	info.Lost = p.state != peerPresent
	return info
}

// Workers reads the members of a dynamic group from the store and returns the workers, without
// clients, ordered by rank, with the field Lost as this agent knows it. In a static group it reads
// nothing. The error is an *Error, and the slice is then nil. The error matches ErrRemoved if this
// worker is no member any more, ErrClosed, or is that of ctx or package store.
func (a *Agent) Workers(ctx context.Context) ([]WorkerInfo, error) {
	if a.isClosed() {
		return nil, &Error{Op: "workers", Err: ErrClosed}
	}
	if err := a.refresh(ctx); err != nil {
		return nil, &Error{Op: "workers", Err: err}
	}
	return a.WorkerInfos(), nil
}

// IncarnationOf returns the incarnation of the worker that the destination to addresses, as this
// agent knows it. The error is as that of Worker.
func (a *Agent) IncarnationOf(ctx context.Context, to To) (Incarnation, error) {
	p, err := a.peer(ctx, to)
	if err != nil {
		return Incarnation{}, &Error{Op: "worker", Worker: string(to), Err: err}
	}
	return Incarnation(p.member.Incarnation), nil
}

// Worker returns the worker that the destination to addresses. If this agent does not know it,
// Worker reads the members of a dynamic group from the store. The error is an *Error, and the
// WorkerInfo is then zero. The error matches ErrNoWorker if there is no such worker, ErrRemoved if
// this worker is no member any more, ErrClosed, or is that of ctx or package store.
func (a *Agent) Worker(ctx context.Context, to To) (WorkerInfo, error) {
	p, err := a.peer(ctx, to)
	if err != nil {
		return WorkerInfo{}, &Error{Op: "worker", Worker: string(to), Err: err}
	}
	a.members.mu.Lock()
	defer a.members.mu.Unlock()
	return p.currentInfo(), nil
}

// nameOf returns the name of a destination's worker if it is known, else the destination.
func (a *Agent) nameOf(to To) string {
	if p := a.peers.find(to); p != nil {
		return p.info.Name
	}
	return string(to)
}
