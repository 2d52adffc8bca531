package agent

import "fmt"

// MessageOutcome is what has become of a message, see Message.OnEnd.
type MessageOutcome byte

// The outcomes of messages.
const (
	// MessageUnsent, of a message to be sent: no byte of it was sent, because it could not be
	// encoded, the call was cancelled before, or there is no pipe.
	MessageUnsent MessageOutcome = 1 + iota

	// MessageUncertain, of a message that was sent: it may have arrived or not. A request has no
	// reply, because the call was cancelled, ran into its limit, or lost its pipe. A reply was
	// given to a pipe that broke.
	MessageUncertain

	// MessageAnswered, of a request that was sent: its reply or failure has arrived, and was
	// decoded unless the call has failed for another reason.
	MessageAnswered

	// MessageSent, of a reply or failure that was sent: the pipe has taken it over, and the agent
	// has forgotten it. A reply that is kept for repeated requests, see WithOnce, ends only when it
	// is evicted, or when the caller has left the group.
	MessageSent

	// MessageHandled, of a message that was received: a request has its reply, a reply was decoded.
	// If the message could not be decoded, MessageEnd.Err has the reason.
	MessageHandled
)

// String returns the name of the outcome, such as "uncertain".
func (o MessageOutcome) String() string {
	names := [...]string{"", "unsent", "uncertain", "answered", "sent", "handled"}
	if o > 0 && int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("outcome %d", byte(o))
}

// MessageEnd is the end of a message. Err is the error of the call, or with which the message could
// not be encoded, sent or decoded; it is nil if there is none.
type MessageEnd struct {
	Outcome MessageOutcome
	Err     error
}

// OnEnd makes f run once, when the message has ended: for a request that is sent, when its call
// has ended. Interceptors and the encodings of values may call OnEnd while the message is encoded or
// decoded, also for a message whose encoding or decoding then fails. The attempts of a call
// WithRetry are different messages, and a reply that is sent again is not a new one. If several
// functions were added, they run in the order in which they were added. They run on any goroutine,
// before the call returns or its future is done, and must not block. For a message that a
// Config.FaultHook sees, OnEnd does nothing.
func (m *Message) OnEnd(f func(MessageEnd)) {
	if m.ends != nil {
		*m.ends = append(*m.ends, f)
	}
}

// messageEnds is the functions that run when a message ends.
type messageEnds []func(MessageEnd)

// run runs the functions, once, and forgets them. It may be called again.
func (e *messageEnds) run(outcome MessageOutcome, err error) {
	all := *e
	*e = nil
	for _, f := range all {
		f(MessageEnd{outcome, err})
	}
}

// take returns the functions, which no longer belong to e.
func (e *messageEnds) take() messageEnds {
	all := *e
	*e = nil
	return all
}

// IsKept reports whether the message is a reply that may be kept and sent again, see WithOnce: what
// it brings may arrive several times, until it has ended.
func (m *Message) IsKept() bool { return m.kept }

// CallKey identifies one call at one of its ends, as long as the agent is open: the request and its
// reply have the same key. It can be compared, and used as the key of a map.
type CallKey struct {
	conn   *conn
	number uint64
	served bool
}

// String returns the key in the form of Agent.Dump, such as "call #3 to worker1".
func (k CallKey) String() string {
	switch {
	case k.conn == nil:
		return "no call"
	case k.served:
		return fmt.Sprintf("request #%d of %s", k.number, k.conn.peer.Name)
	}
	return fmt.Sprintf("call #%d to %s", k.number, k.conn.peer.Name)
}

// Agent returns the agent that sends or has received the message.
func (m *Message) Agent() *Agent { return m.key.conn.agent }

// Call returns the key of the call to which the message belongs.
func (m *Message) Call() CallKey { return m.key }

// Incarnation returns the incarnation of the worker at the other end.
func (m *Message) Incarnation() Incarnation { return Incarnation(m.key.conn.owner.member.Incarnation) }
