package agent

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// CallState is the state of a call that this worker makes.
type CallState byte

// The states of a call, in the order in which it goes through them, except the last.
const (
	CallConnecting CallState = 1 + iota // waits for a pipe to the worker
	CallBlocked                         // waits until Limits.CallBytes admit its request
	CallSending                         // its request is being sent
	CallWaiting                         // waits for the reply
	CallReading                         // its reply is being read
	CallRetrying                        // waits for its next attempt, see WithRetry
)

func (s CallState) String() string {
	switch s {
	case CallConnecting:
		return "waiting for a pipe"
	case CallBlocked:
		return "waiting for the byte budget"
	case CallSending:
		return "request being sent"
	case CallWaiting:
		return "at the callee"
	case CallReading:
		return "reply being read"
	case CallRetrying:
		return "waiting for the next attempt"
	}
	return fmt.Sprintf("state %d", byte(s))
}

// CallInfo describes a call of this worker that has not ended.
type CallInfo struct {
	To         To
	Type, Name string
	ID         uint64        // among the calls on one pipe; 0 before the request is encoded
	Begun      time.Time     // of the latest attempt, see WithRetry
	Limit      time.Duration // of that attempt, 0 for none
	State      CallState
}

// ServedState is the state of a request that this worker serves.
type ServedState byte

// The states of a request.
const (
	ServedReading   ServedState = iota // is being read or decoded
	ServedHeld                         // an interceptor holds it
	ServedRepeated                     // waits for the reply to a request with the same key, see WithOnce
	ServedQueued                       // waits for Config.MaxHandlers, or until its caller reads replies
	ServedRunning                      // its handler runs
	ServedNested                       // its handler waits for a call or a future
	ServedDeferred                     // its handler has returned and has not replied yet
	ServedAnswering                    // its reply is being sent
)

func (s ServedState) String() string {
	names := [...]string{"being read", "held back", "waiting for the reply to a repeat", "waiting for a slot",
		"running", "waiting for a call of its own", "to be replied to later", "being replied to"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", byte(s))
}

// ServedInfo describes a request that this worker serves.
type ServedInfo struct {
	From       WorkerInfo
	Type, Name string
	ID         uint64 // among the requests on one pipe
	Begun      time.Time
	Limit      time.Duration // time that was left when it arrived, 0 for no limit
	State      ServedState
}

// info returns a description of the call in state s. No other goroutine may change the call
// concurrently.
func (c *call) info(s CallState) CallInfo {
	return CallInfo{To: c.to, Type: c.typ, Name: c.name, ID: c.id, Begun: c.begun, Limit: c.limit, State: s}
}

func (r *Request) state() ServedState {
	s := ServedState(r.stage.Load())
	switch {
	case r.answered.Load():
		return ServedAnswering
	case s == ServedRunning && r.slot.isWaiting():
		return ServedNested
	}
	return s
}

// Snapshot is the calls of an agent at one moment, see Agent.Snapshot.
type Snapshot struct {
	Pending []CallInfo   // the calls of this worker that have not ended, the oldest first
	Served  []ServedInfo // the requests that this worker serves, the oldest first
}

// Snapshot returns the calls of this worker that have not ended and the requests that it serves,
// the oldest first. The slices belong to the caller. The connections are read one after the other,
// so the lists need not be of exactly one moment.
func (a *Agent) Snapshot() Snapshot {
	var s Snapshot
	a.outsideCalls.mu.Lock()
	for info := range a.outsideCalls.all {
		s.Pending = append(s.Pending, *info)
	}
	a.outsideCalls.mu.Unlock()
	a.conns.Range(func(key, _ any) bool {
		c := key.(*conn)
		c.calls.mu.Lock()
		for _, call := range c.calls.pending {
			state := CallSending
			if call.requestSent.Load() {
				state = CallWaiting
			}
			s.Pending = append(s.Pending, call.info(state))
		}
		c.calls.mu.Unlock()
		c.mu.Lock()
		for _, r := range c.serving {
			s.Served = append(s.Served, ServedInfo{
				From: c.peer, Type: r.handler.typ, Name: r.handler.name, ID: r.id,
				Begun: r.begun, Limit: r.limit, State: r.state(),
			})
		}
		c.mu.Unlock()
		return true
	})
	slices.SortFunc(s.Pending, func(x, y CallInfo) int { return cmp.Or(x.Begun.Compare(y.Begun), cmp.Compare(x.ID, y.ID)) })
	slices.SortFunc(s.Served, func(x, y ServedInfo) int { return cmp.Or(x.Begun.Compare(y.Begun), cmp.Compare(x.ID, y.ID)) })
	return s
}

// outsideCalls lists, for introspection, the calls that are not yet, or no longer, in the table of
// a connection.
type outsideCalls struct {
	mu  sync.Mutex
	all map[*CallInfo]struct{}
}

// add lists a copy of the call c, in the given state, until the returned function remove is called.
// The caller must call remove once.
func (s *outsideCalls) add(c *call, state CallState) (remove func()) {
	info := c.info(state)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*CallInfo]struct{}{}
	}
	s.all[&info] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, &info)
	}
}

// Metrics are counters of an agent.
type Metrics struct {
	MaxHandlers     int // Config.MaxHandlers
	RunningHandlers int // handlers that run and count for it
	QueuedRequests  int // requests that wait for one of them to end

	PendingCalls    int // calls of this worker that have not ended
	BlockedCalls    int // of these: calls that wait until Limits.CallBytes admit them
	ServedCalls     int // requests that have no reply yet
	DeferredReplies int // of these: requests whose handler has returned
	Pipes           int // pipes that are up

	LateReplies       uint64 // replies to calls that had ended
	DuplicateRequests uint64 // requests that arrived again while they were served
	RejectedPipes     uint64 // pipes of other processes that were rejected
}

// Metrics returns the current counters of the agent. It allocates nothing. The counters are read
// one after the other, so they may be of slightly different moments.
func (a *Agent) Metrics() Metrics {
	m := Metrics{
		MaxHandlers:       a.slots.max,
		LateReplies:       a.stats.lateReplies.Load(),
		DuplicateRequests: a.stats.duplicateRequests.Load(),
		RejectedPipes:     a.stats.rejectedPipes.Load(),
	}
	a.slots.mu.Lock()
	m.RunningHandlers, m.QueuedRequests = a.slots.busy, a.slots.queued.Len()
	a.slots.mu.Unlock()
	a.outsideCalls.mu.Lock()
	m.PendingCalls = len(a.outsideCalls.all)
	for info := range a.outsideCalls.all {
		if info.State == CallBlocked {
			m.BlockedCalls++
		}
	}
	a.outsideCalls.mu.Unlock()
	a.conns.Range(func(key, _ any) bool {
		c := key.(*conn)
		m.Pipes++
		c.calls.mu.Lock()
		m.PendingCalls += len(c.calls.pending)
		c.calls.mu.Unlock()
		c.mu.Lock()
		m.ServedCalls += len(c.serving)
		for _, r := range c.serving {
			if r.state() == ServedDeferred {
				m.DeferredReplies++
			}
		}
		c.mu.Unlock()
		return true
	})
	return m
}

// Dump writes the state of the agent to w as text: each call that has not ended, with its worker,
// age and state, each request that is served here, and what the extensions write. The error is that
// of w.
func (a *Agent) Dump(w io.Writer) error {
	var b bytes.Buffer
	now, m, s := time.Now(), a.Metrics(), a.Snapshot()
	fmt.Fprintf(&b, "agent %s rank %d: %d of %d handlers running, %d requests waiting for one, %d pipes\n",
		a.self.Name, a.self.Rank, m.RunningHandlers, m.MaxHandlers, m.QueuedRequests, m.Pipes)
	fmt.Fprintf(&b, "calls: %d\n", len(s.Pending))
	for _, c := range s.Pending {
		fmt.Fprintf(&b, "  #%d %s to %s: %v, %s\n", c.ID, displayName(c.Type, c.Name), c.To, now.Sub(c.Begun), c.State)
	}
	fmt.Fprintf(&b, "serving: %d\n", len(s.Served))
	for _, r := range s.Served {
		fmt.Fprintf(&b, "  #%d %s from %s: %v, %s\n", r.ID, displayName(r.Type, r.Name), r.From.Name, now.Sub(r.Begun), r.State)
	}
	for _, e := range a.extensions {
		if err := e.Dump(&b); err != nil {
			fmt.Fprintf(&b, "%T: %v\n", e, err)
		}
	}
	_, err := b.WriteTo(w)
	return err
}
