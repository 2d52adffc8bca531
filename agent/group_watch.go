package agent

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// Incarnation identifies one life of a worker under its name. It is random.
type Incarnation roster.Incarnation

// String returns the incarnation as 32 hexadecimal digits.
func (i Incarnation) String() string { return hex.EncodeToString(i[:]) }

// MemberEventKind is the kind of a MemberEvent.
type MemberEventKind byte

// The kinds of events. In a static group workers are neither restarted nor removed.
const (
	MemberJoined      MemberEventKind = 1 + iota // the worker is in the group
	MemberLost                                   // the pipe to the worker broke, or none can be opened
	MemberReconnected                            // there is a pipe to a lost worker again
	MemberLeft                                   // the worker has left the group in order
	MemberRestarted                              // another incarnation has replaced the worker
	MemberRemoved                                // another worker has removed the worker, see Agent.Remove
)

func (k MemberEventKind) String() string {
	names := [...]string{"", "joined", "lost", "reconnected", "left", "restarted", "removed"}
	if k > 0 && int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("event %d", byte(k))
}

// MemberEvent is a change of one member of the group, a worker or a client, see Agent.Watch.
type MemberEvent struct {
	Kind        MemberEventKind
	Worker      WorkerInfo
	Client      bool        // see Config.Client
	Incarnation Incarnation // of MemberRestarted: the new one

	// Err, of MemberLost, is the reason for which the pipe ended or could not be opened. It matches
	// ErrUnreachable. It is nil for other kinds.
	Err error
}

// String returns the event in one line, such as "worker1 lost: unreachable: lost the peer".
func (e MemberEvent) String() string {
	text := e.Worker.Name + " " + e.Kind.String()
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Watch calls f for each member of the group except this worker, first with MemberJoined for those
// that are members now, by rank, and MemberLost after it for those that are lost, then for each
// change, until the function stop is called or the agent is closed. It calls f for this worker only
// if it is removed or replaced.
//
// Watch opens no pipes. It learns of a lost worker when a pipe breaks that was opened for another
// reason, such as a call of either end, or when a call cannot open one; a worker without a pipe may
// die unnoticed, see WatchAll. A process that hangs, or is stopped, keeps its pipe and is not lost.
// In a static group Watch learns only from pipes that a worker has left, too; in a dynamic group
// also from the store, and that is how it learns of workers that join, restart or are removed. A
// removed worker counts as one that has left if more than 64 others have been removed before this
// agent reads the store.
//
// The calls are made one after the other, on a goroutine of the agent that runs only while there is
// something to report, so f may block and may call methods of the agent. While f runs, changes are
// not queued: of each member the next calls report the difference between the last reported state
// and the present one. So a slow f misses changes that were reverted while it ran, such as a client
// that joined and left, and memory is bounded by the number of members. The events of one member
// come in order.
//
// stop does not wait: one call may be in progress when stop or Close returns. It may be called
// several times, and from f.
func (a *Agent) Watch(f func(MemberEvent)) (stop func()) {
	return a.members.watch(&watch{agent: a, notify: f})
}

// WatchAll calls f as Watch does, and keeps a pipe open to each member, through which it learns
// that the member is lost or has left. Calls use the same pipe. A pipe takes some 100 KiB in each
// of both processes, so in a large group a few workers should watch all others. A member to which
// no pipe can be opened is lost after the second attempt, unless it is only silent or rejects the
// pipe. While a member is lost, WatchAll tries to open another pipe, first after a second, then
// more rarely, every 30 s in the end. The pipes stay open after stop.
func (a *Agent) WatchAll(f func(MemberEvent)) (stop func()) {
	ctx, cancel := context.WithCancel(a.base)
	stopWatch := a.members.watch(&watch{agent: a, notify: f, connects: ctx})
	return func() {
		stopWatch()
		cancel()
	}
}

// watch is one call of Watch or WatchAll. Its fields are guarded by the mutex of peerStates.
type watch struct {
	agent    *Agent
	notify   func(MemberEvent)
	connects context.Context // of WatchAll, until it is stopped: keeps pipes open. nil for Watch
	members  map[string]*watchedMember
	changed  fifo.Queue[string] // names of the members with queued set
	running  bool               // a goroutine calls notify
}

// watchedMember is the state of a member that a watch has reported last, and the present one.
type watchedMember struct {
	reported, present peerView
	queued            bool
}

// peerView is an incarnation of a member in one state.
type peerView struct {
	peer  *peer // nil before the first view
	state peerState
	err   error // of peerLost
}

// watch adds the watch w, which reports the present members first, and returns the function that
// removes it. If the agent is closed, w reports nothing.
func (m *peerStates) watch(w *watch) (stop func()) {
	a := w.agent
	m.mu.Lock()
	defer m.mu.Unlock()
	w.members = map[string]*watchedMember{}
	if a.isClosed() {
		return func() {}
	}
	self := peerView{peer: a.selfPeer, state: peerPresent}
	w.members[a.self.Name] = &watchedMember{reported: self, present: self}
	for _, p := range a.peers.members() {
		if p != a.selfPeer {
			w.update(peerView{p, p.state, p.stateErr})
		}
	}
	m.watches[w] = struct{}{}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watches, w)
	}
}

// update records now as the present state of a member, and starts a goroutine that reports it
// unless one runs. For WatchAll it starts to keep a pipe to a new member or a new incarnation of
// one. The caller holds the mutex of peerStates.
func (w *watch) update(now peerView) {
	name := now.peer.info.Name
	e := w.members[name]
	if e == nil {
		e = &watchedMember{}
		w.members[name] = e
	}
	if w.connects != nil && e.present.peer != now.peer && now.peer != w.agent.selfPeer {
		w.agent.spawn(func() { w.agent.keepConnected(w.connects, now.peer) }) // unless the agent is closed
	}
	e.present = now
	if !e.queued {
		e.queued = true
		w.changed.Push(name)
	}
	if !w.running {
		w.running = true
		go w.run()
	}
}

// run calls w.notify until there is nothing to report or the watch has been stopped.
func (w *watch) run() {
	for {
		event, ok := w.next()
		if !ok {
			return
		}
		w.notify(event)
	}
}

// next takes the next event and returns it and true. It returns false, and clears w.running, if
// there is none, if w was stopped or if the agent is closed.
func (w *watch) next() (MemberEvent, bool) {
	m := &w.agent.members
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, active := m.watches[w]; active && !w.agent.isClosed() {
		for w.changed.Len() > 0 {
			e := w.members[w.changed.Front()]
			if kind := e.step(); kind != 0 {
				return e.reported.event(kind), true
			}
			e.queued = false
			if name := w.changed.Pop(); e.present.state >= peerLeft && !e.present.peer.listed {
				delete(w.members, name)
			}
		}
	}
	w.running = false
	return MemberEvent{}, false
}

// step changes e.reported by one event towards e.present, and returns the kind of that event. It
// returns 0 if there is nothing to report: the two are the same, or the member is unknown and gone.
func (e *watchedMember) step() MemberEventKind {
	from, to := e.reported, e.present
	known := from.state == peerPresent || from.state == peerLost
	e.reported = to
	switch {
	case !known && to.state >= peerLeft:
		return 0
	case !known || from.peer != to.peer:
		e.reported = peerView{peer: to.peer, state: peerPresent}
		if known {
			return MemberRestarted
		}
		return MemberJoined
	case from.state == to.state:
		return 0
	}
	return [...]MemberEventKind{
		peerPresent: MemberReconnected, peerLost: MemberLost, peerLeft: MemberLeft, peerRemoved: MemberRemoved,
	}[to.state]
}

func (v peerView) event(kind MemberEventKind) MemberEvent {
	e := MemberEvent{Kind: kind, Worker: v.peer.info, Client: v.peer.isClient(), Incarnation: Incarnation(v.peer.member.Incarnation)}
	if kind == MemberLost {
		e.Err = v.err
	}
	e.Worker.Lost = v.state != peerPresent
	return e
}

// Delays before WatchAll tries again to open a pipe to a lost worker.
const (
	firstRedial = time.Second
	lastRedial  = 30 * time.Second
)

// keepConnected keeps a pipe to the peer p open until ctx ends, p has left or this agent is closed.
// When the pipe has ended or cannot be opened, keepConnected opens another one after a delay, which
// grows while that fails. A failure makes the peer lost if dialFailed decides so. The failure of
// the very first attempt does not, because the worker may be about to leave.
func (a *Agent) keepConnected(ctx context.Context, p *peer) {
	for wait := firstRedial; ; wait = min(2*wait, lastRedial) {
		c, err := p.connect(ctx)
		switch {
		case err == nil:
			_ = await(ctx, c.down)
			wait = firstRedial
		case wait > firstRedial && ctx.Err() == nil:
			p.dialFailed(err)
		}
		if a.members.hasLeft(p) {
			return
		}
		again := time.NewTimer(wait)
		select {
		case <-again.C:
			continue
		case <-p.ctx.Done(): // it has left, or this agent is closed
		case <-ctx.Done():
		}
		again.Stop()
		return
	}
}
