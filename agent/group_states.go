package agent

import (
	"context"
	"errors"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// peerState is what this worker knows of a member of the group.
type peerState byte

const (
	peerPresent peerState = 1 + iota
	peerLost              // its pipe broke, or none can be opened; it is still a member
	peerLeft              // it has closed its pipe in order, or has left the member list
	peerRemoved           // another worker took it off the member list
)

// peerStates orders the changes of the states of all peers, and reports them to the watches. The
// fields of the peers that have the states are guarded by mu. mu may be taken while the mu of a
// peer is held, not the other way round.
type peerStates struct {
	mu      sync.Mutex
	watches map[*watch]struct{}
}

// set makes state the state of the peer p, with err as the reason for peerLost, and reports the
// change to all watches. The caller holds m.mu.
func (m *peerStates) set(p *peer, state peerState, err error) {
	p.state, p.stateErr = state, err
	for w := range m.watches {
		w.update(peerView{p, state, err})
	}
}

// setByPipe makes state the state of the peer p, because of a pipe to it that was opened, that
// ended or that could not be opened, with err as the reason for peerLost. It does nothing for this
// worker, for a peer that is not on the member list any more, or if p has that state already. A
// peer that has left can only become present again.
func (m *peerStates) setByPipe(p *peer, state peerState, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p != p.agent.selfPeer && p.listed && p.state != state && (p.state != peerLeft || state == peerPresent) {
		m.set(p, state, err)
	}
}

func (m *peerStates) hasLeft(p *peer) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return p.state >= peerLeft
}

// pipeEnded detaches the pipe c, which has ended with cause, from the peer. If there is no other
// pipe to the peer, the peer is lost from now on, or has left if it has closed the pipe in order. A
// pipe that this end has closed changes no state. pipeEnded locks p.mu.
func (p *peer) pipeEnded(c *conn, cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn.CompareAndSwap(c, nil) {
		p.notifyChanged()
	}
	switch {
	case p.conn.Load() != nil, errors.Is(cause, pipe.ErrClosed):
	case closedInOrder(cause):
		p.agent.members.setByPipe(p, peerLeft, nil)
	default:
		p.agent.members.setByPipe(p, peerLost, c.lostError(cause))
	}
}

// closedInOrder reports whether cause, with which a pipe has ended, is an orderly end by the other
// worker. An agent ends its pipes in order only when it is closed; a pipe that it has to abort ends
// with a reason, which the error has beside pipe.ErrPeerClosed.
func closedInOrder(cause error) bool {
	e, ok := errors.AsType[*pipe.Error](cause)
	return ok && e.Err == pipe.ErrPeerClosed
}

// dialFailed marks the peer as lost because of err, with which opening a pipe to it has failed. It
// does nothing if err does not show that the worker is gone: if err is a timeout, since a process
// that is stopped counts as alive; a lack of resources of this process; a simultaneous dial; or a
// rejection by the worker, unless the worker is closing. It also does nothing if the peer has left
// or this agent is closed. err must not be that of a context that the caller has cancelled.
func (p *peer) dialFailed(err error) {
	var timeout interface{ Timeout() bool }
	switch {
	case p.ctx.Err() != nil, isRejection(err), errors.Is(err, errSimultaneousOpen), errors.Is(err, transport.ErrResource):
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
	default:
		p.agent.members.setByPipe(p, peerLost, err)
	}
}

// isRejection reports whether err, the error of opening a pipe to a worker, means that this worker
// is alive and has rejected the pipe. It returns false if another incarnation has rejected it, or
// if the worker is closing.
func isRejection(err error) bool {
	return errors.Is(err, ErrRefused) && !errors.Is(err, ErrRestarted) && !errors.Is(err, ErrClosed)
}

// update replaces the peers of this agent by the members that the roster knows. It reports
// WorkerLeft, WorkerJoined and the events of the watches for the changes, and ends the pipes and
// dials of the peers that have left. Concurrent calls change the peers one after the other.
func (a *Agent) update() {
	m := &a.members
	m.mu.Lock()
	var added []*peer
	removed := a.peers.set(a.roster.Members, func(m roster.Member) *peer {
		if m.Incarnation == a.incarnation {
			return a.selfPeer
		}
		p := a.newPeer(m)
		added = append(added, p)
		return p
	})
	for _, p := range removed {
		p.listed = false
		if a.events.WorkerLeft != nil {
			a.events.WorkerLeft(WorkerLeftInfo{p.info, p.isClient()})
		}
		switch {
		case a.peers.find(p.info.To()) != nil: // the change is that of the next incarnation
		case a.roster.Removed(p.member.Incarnation):
			m.set(p, peerRemoved, nil)
		default:
			m.set(p, peerLeft, nil)
		}
	}
	for _, p := range added {
		p.listed = true
		if a.events.WorkerJoined != nil {
			a.events.WorkerJoined(WorkerJoinedInfo{p.info, p.isClient()})
		}
		m.set(p, peerPresent, nil)
	}
	a.updateDevices()
	m.mu.Unlock()
	for _, p := range removed {
		p.handleLeave()
		p.onceCache.forget()
	}
}
