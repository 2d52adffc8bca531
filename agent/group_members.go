package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
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

// Remove takes a dead worker off the member list of a dynamic group. Until then the worker is a
// member, and collective operations of the whole group fail with its name, unless it is restarted
// with Config.Replace.
//
// Remove returns when the worker is off the list. It blocks while there is a pipe to the worker or
// one can be opened: a worker that answers is not removed, nor is one that has restarted since. Use
// a ctx with a deadline: a worker that hangs may keep its pipe as long as its process lives.
//
// The other workers learn of the removal from the store, as when a worker leaves. They end their
// pipes to the removed worker. Pending calls to it and pending rounds with it fail with
// ErrUnreachable, later ones with ErrNoWorker, and its name and rank are free. If the removed
// worker is alive, and only this worker could not reach it, then at the removed worker pending
// calls fail with ErrUnreachable, and later calls, Workers and collective operations with
// ErrRemoved. It may join again, as another incarnation.
//
// The error is an *Error. It matches ErrStatic for a static group, whose members are fixed;
// ErrNoWorker if there is no such worker, as after another Remove; ErrConfig if worker is this
// worker itself, which leaves by Shutdown or Close; ErrUnreachable for a worker that answers but
// rejects the pipe; ErrRemoved if this worker is no member itself; ErrClosed if this agent is
// closed; or it is an error of ctx or of package store.
func (a *Agent) Remove(ctx context.Context, worker To) error {
	if err := a.remove(ctx, worker); err != nil {
		return &Error{Op: "remove", Worker: a.nameOf(worker), Err: err}
	}
	return nil
}

func (a *Agent) remove(ctx context.Context, worker To) error {
	if a.IsStatic() {
		return ErrStatic
	}
	p, err := a.peer(ctx, worker)
	if err != nil {
		return err
	}
	if p == a.selfPeer {
		return fmt.Errorf("%w: a worker does not remove itself", ErrConfig)
	}
	defer beginWait(ctx)()
	for {
		alive, err := a.removeIfDead(ctx, p)
		if alive == nil {
			return err
		}
		if err := await(ctx, alive.down); err != nil {
			return fmt.Errorf("the worker has not died: %w", err)
		}
	}
}

// removeIfDead removes the worker of p from the member list if no pipe to the worker can be opened,
// and returns nil and nil. If there is a pipe, or one can be opened, it returns that pipe and nil,
// and does not remove the worker. If the worker answered and rejected the pipe, it returns the
// error of the rejection and does not remove the worker. Other errors are ErrClosed, or those of
// ctx, of refresh or of the roster; after an error of refresh or of the roster the worker may have
// been removed.
func (a *Agent) removeIfDead(ctx context.Context, p *peer) (alive *conn, err error) {
	c, err := p.connect(ctx)
	for errors.Is(err, errSimultaneousOpen) && ctx.Err() == nil {
		c, err = p.connect(ctx) // the worker's own pipe was not opened: it may have died since
	}
	switch {
	case err == nil:
		return c, nil
	case ctx.Err() != nil:
		return nil, ctxerr.Cause(ctx)
	case a.isClosed():
		return nil, ErrClosed
	case isRejection(err):
		return nil, err
	}
	if err := a.refresh(ctx); err != nil { // a removed worker must not remove others
		return nil, err
	}
	if c := p.conn.Load(); c != nil { // it has opened a pipe since
		return c, nil
	}
	if err := a.roster.Remove(ctx, p.info.Name, p.member.Incarnation); err != nil {
		return nil, err
	}
	return nil, a.refresh(ctx)
}

func (p *peer) isClient() bool { return p.published.Client }

// clientReconnectTime is the time in which a client that has lost its pipe may open another.
const clientReconnectTime = 2 * time.Second

// removeLostClient waits for clientReconnectTime after a pipe to a client has ended, and then
// removes the client from the group if no pipe to it can be opened within the handshake timeout.
// It returns early if the client leaves or the agent is closed; errors are logged.
func (a *Agent) removeLostClient(p *peer) {
	back := time.NewTimer(clientReconnectTime)
	defer back.Stop()
	select {
	case <-back.C:
	case <-p.ctx.Done(): // it has left, or this agent is closed
		return
	}
	ctx, cancel := context.WithTimeout(a.base, a.handshakeTimeout)
	defer cancel()
	if _, err := a.removeIfDead(ctx, p); err != nil && !a.isClosed() {
		a.log.Debug("client not removed", "client", p.info.Name, "error", err)
	}
}
