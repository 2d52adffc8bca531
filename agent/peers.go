package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
)

// peers is the table of the members of the group, as far as this worker knows them.
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

// workers are those who are no clients, by rank.
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

// set makes members those that there are. Who is another incarnation than before is
// another peer. It returns those who are gone.
//
// Members is asked under the lock: of two callers the one who comes later must not
// bring what is older.
func (t *peers) set(members func() []roster.Member, create func(roster.Member) *peer) (gone []*peer) {
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
			gone = append(gone, p)
		}
	}
	return gone
}

// peer is the worker that to addresses. Who is not known may have joined just now.
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
		return nil, fmt.Errorf("%w: %s could not find destination id %d", ErrNoWorker, a.self, rank)
	}
	return nil, fmt.Errorf("%w: %s could not find destination name %s", ErrNoWorker, a.self, to)
}

// peerByIdentity is the member that opened a pipe. The error matches ErrRestarted for
// another incarnation than the member's.
func (a *Agent) peerByIdentity(ctx context.Context, who identity) (*peer, error) {
	known := func() *peer {
		if p := a.peers.find(To(who.Name)); p != nil && p.identity() == who {
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
	if a.peers.find(To(who.Name)) != nil {
		return nil, fmt.Errorf("%w: worker %s is known as another incarnation", ErrRestarted, who.Name)
	}
	return nil, fmt.Errorf("%w: %s does not know a worker %s", ErrNoWorker, a.self, who.Name)
}

// refresh reads who is in the group, where that changes. The store may take its time, for
// which others have the slot, or the shift, of who asks.
func (a *Agent) refresh(ctx context.Context) error {
	if a.isStatic() {
		return nil
	}
	defer leaveSlot(ctx)()
	if err := a.roster.Refresh(ctx); err != nil {
		return err
	}
	a.update()
	return nil
}

// update takes over who is in the group.
func (a *Agent) update() {
	gone := a.peers.set(a.roster.Members, a.newPeer)
	for _, p := range gone {
		p.leave()
	}
}

func (a *Agent) newPeer(m roster.Member) *peer {
	if m.Incarnation == a.incarnation {
		return a.own
	}
	return a.makePeer(m)
}
