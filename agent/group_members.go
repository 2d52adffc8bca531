package agent

import (
	"context"
	"fmt"
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

// workers returns the members that are no clients, ordered by rank. The slice belongs to the
// caller.
func (t *peers) workers() []*peer {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var list []*peer
	for _, p := range t.byName {
		if !p.isClient() {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(x, y *peer) int { return x.info.Rank - y.info.Rank })
	return list
}

// set replaces the table by the list that members returns. A new incarnation of a member gets a
// new peer, made by create; other members keep theirs. It returns the peers that are no longer in
// the table.
//
// members and create are called with mu held: otherwise the slower of two callers could store an
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

// peer returns the worker that to addresses. It reads the members again if the worker is unknown,
// since it may have just joined. The error matches ErrNoWorker if there is no such worker,
// ErrClosed, or is that of refresh.
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

// peerByIdentity returns the member with this name, rank and incarnation. It reads the members
// again if that is unknown. The error matches ErrRestarted if the member of this name has another
// incarnation or rank, ErrNoWorker if there is none, or is that of refresh.
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
// nothing in a static group. Since that may take long, a handler that calls it has no slot, and
// does not lead, until refresh returns. The error matches ErrRemoved if this worker is no member
// any more, or is that of ctx or of the store.
func (a *Agent) refresh(ctx context.Context) error {
	if a.isStatic() {
		return nil
	}
	defer beginWait(ctx)()
	if err := a.roster.Refresh(ctx); err != nil {
		return err
	}
	a.update()
	return nil
}

// update makes the roster's members the peers of this agent, and ends the pipes and dials of
// peers that have left.
func (a *Agent) update() {
	a.updateLock.Lock()
	var added []*peer
	removed := a.peers.set(a.roster.Members, func(m roster.Member) *peer {
		if m.Incarnation == a.incarnation {
			return a.selfPeer
		}
		p := a.newPeer(m)
		added = append(added, p)
		return p
	})
	if a.events.WorkerLeft != nil {
		for _, p := range removed {
			a.events.WorkerLeft(WorkerLeftInfo{p.info, p.isClient()})
		}
	}
	if a.events.WorkerJoined != nil {
		for _, p := range added {
			a.events.WorkerJoined(WorkerJoinedInfo{p.info, p.isClient()})
		}
	}
	a.updateLock.Unlock()
	for _, p := range removed {
		p.handleLeave()
	}
}

// WorkerInfos returns the workers of the group, without clients, ordered by rank, as last read
// from the store. The slice belongs to the caller.
func (a *Agent) WorkerInfos() []WorkerInfo {
	var infos []WorkerInfo
	for _, p := range a.peers.workers() {
		infos = append(infos, p.info)
	}
	return infos
}

// Workers reads the members of a dynamic group from the store and returns the workers, without
// clients, ordered by rank. In a static group it reads nothing. The error is an *Error; it
// matches ErrRemoved if this worker is no member any more, ErrClosed, or is that of ctx or
// package store.
func (a *Agent) Workers(ctx context.Context) ([]WorkerInfo, error) {
	if a.isClosed() {
		return nil, &Error{Op: "workers", Err: ErrClosed}
	}
	if err := a.refresh(ctx); err != nil {
		return nil, &Error{Op: "workers", Err: err}
	}
	return a.WorkerInfos(), nil
}

// Worker returns the worker that a destination addresses. If this agent does not know it, Worker
// reads the members of a dynamic group from the store. The error is an *Error. It matches
// ErrNoWorker if there is no such worker, ErrRemoved if this worker is no member any more,
// ErrClosed, or is that of ctx or package store.
func (a *Agent) Worker(ctx context.Context, to To) (WorkerInfo, error) {
	p, err := a.peer(ctx, to)
	if err != nil {
		return WorkerInfo{}, &Error{Op: "worker", Worker: string(to), Err: err}
	}
	return p.info, nil
}

// nameOf returns the name of a destination's worker if it is known, else the destination.
func (a *Agent) nameOf(to To) string {
	if p := a.peers.find(to); p != nil {
		return p.info.Name
	}
	return string(to)
}
