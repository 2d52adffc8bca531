package agent

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// CallState is what a call of this worker waits for.
type CallState byte

// The states of a call, in the order in which it goes through them, but for the last.
const (
	CallConnecting CallState = 1 + iota // here, for a pipe to the worker
	CallBlocked                         // here, for room: too much is on its way to the worker
	CallSending                         // for the request to leave
	CallWaiting                         // for the worker called to answer
	CallReading                         // for the answer, which has begun to come
	CallRetrying                        // here, for the time at which it is made again, see WithRetry
)

func (s CallState) String() string {
	switch s {
	case CallConnecting:
		return "here, for a pipe"
	case CallBlocked:
		return "here, for room"
	case CallSending:
		return "request being sent"
	case CallWaiting:
		return "at the callee"
	case CallReading:
		return "answer being read"
	case CallRetrying:
		return "here, to be made again"
	}
	return fmt.Sprintf("state %d", byte(s))
}

// CallInfo is a call of this worker that has not ended.
type CallInfo struct {
	To         To
	Type, Name string
	ID         uint64        // of those to this worker, 0 before it has one
	Begun      time.Time     // the last attempt, see WithRetry
	Limit      time.Duration // of that, 0 is none
	State      CallState
}

// ServedState is what becomes of a request that is served here.
type ServedState byte

// The states of a request.
const (
	ServedReading   ServedState = iota // it is coming in, or being decoded
	ServedHeld                         // an interceptor holds it back
	ServedRepeated                     // it waits for the answer to another one, see Once
	ServedQueued                       // it waits for one of Config.MaxHandlers, or for its caller to take in answers
	ServedRunning                      // its handler runs
	ServedNested                       // its handler waits for calls of its own
	ServedLater                        // its handler has returned, the answer comes later
	ServedAnswering                    // the answer is being sent
)

func (s ServedState) String() string {
	names := [...]string{"being read", "held back", "waiting for the same request", "waiting for a slot",
		"running", "waiting for a call of its own", "to be answered later", "being answered"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", byte(s))
}

// ServedInfo is a request that is served here.
type ServedInfo struct {
	From       WorkerInfo
	Type, Name string
	ID         uint64 // of those of this caller
	Begun      time.Time
	Limit      time.Duration // what was left for it when it came, 0 without one
	State      ServedState
}

// info describes the call, which nobody else changes meanwhile.
func (c *call) info(s CallState) CallInfo {
	return CallInfo{To: c.to, Type: c.typ, Name: c.name, ID: c.id, Begun: c.begun, Limit: c.limit, State: s}
}

// list describes the calls of the table.
func (t *calls) list() []CallInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []CallInfo
	for _, c := range t.waiting {
		s := CallSending
		if c.left.Load() {
			s = CallWaiting
		}
		all = append(all, c.info(s))
	}
	return all
}

// served describes the requests of the other end.
func (c *conn) served() []ServedInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []ServedInfo
	for _, r := range c.serving {
		all = append(all, ServedInfo{
			From: c.peer, Type: r.handler.typ, Name: r.handler.name, ID: r.id,
			Begun: r.begun, Limit: r.limit, State: r.state(),
		})
	}
	return all
}

func (r *Request) state() ServedState {
	s := ServedState(r.stage.Load())
	switch {
	case r.answered.Load():
		return ServedAnswering
	case s == ServedRunning && r.slot.isAway():
		return ServedNested
	}
	return s
}

// pipesUp lists the pipes that are up, those to this worker itself included.
func (a *Agent) pipesUp() []*conn {
	var all []*conn
	a.conns.Range(func(c, _ any) bool {
		all = append(all, c.(*conn))
		return true
	})
	return all
}

// PendingCalls describes the calls of this worker that have not ended, the oldest first.
func (a *Agent) PendingCalls() []CallInfo {
	all := a.aside.list()
	for _, c := range a.pipesUp() {
		all = append(all, c.calls.list()...)
	}
	slices.SortFunc(all, func(x, y CallInfo) int { return cmp.Or(x.Begun.Compare(y.Begun), cmp.Compare(x.ID, y.ID)) })
	return all
}

// ServedCalls describes the requests that are served here, the oldest first.
func (a *Agent) ServedCalls() []ServedInfo {
	var all []ServedInfo
	for _, c := range a.pipesUp() {
		all = append(all, c.served()...)
	}
	slices.SortFunc(all, func(x, y ServedInfo) int { return cmp.Or(x.Begun.Compare(y.Begun), cmp.Compare(x.ID, y.ID)) })
	return all
}
