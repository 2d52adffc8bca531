package agent

import (
	"errors"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Events are functions that report what an agent does, for traces and metrics. Each may be nil. A
// nil function costs neither an allocation nor a reading of the clock.
//
// The functions are called synchronously, by the goroutine on which the event happens: that of a
// caller or a handler, or one of the agent, which may hold locks and may be the only one that reads
// the messages of a worker. They must not block, and must not call methods of an Agent, a Request
// or a Future. They may be called concurrently.
//
// Events come in this order: of a call CallStarted and then CallEnded, before the call returns or
// its future is done; of a request ServeStarted and then ServeEnded; of a pipe PeerConnected,
// before it carries any call, and then PeerLost. Closed comes after all others, except those of
// callers and handlers for which Close does not wait.
type Events struct {
	// CallStarted is called when this worker begins a call. Each attempt of a call WithRetry is a
	// call of its own. Barriers and AllGather make calls of the type "agent.group". A stream is one
	// call, of the type "agent.stream.server", "agent.stream.client" or "agent.stream.bidi".
	CallStarted func(CallStartedInfo)

	// CallEnded is called once for each call when it has ended, also if it was cancelled or its
	// request was not sent.
	CallEnded func(CallEndedInfo)

	// ServeStarted is called when a request of another worker, or of this one, has arrived.
	ServeStarted func(ServeStartedInfo)

	// ServeEnded is called once for each request when its reply has been sent or lost. It is called
	// for requests that were rejected, and not for those to which a handler never replies.
	ServeEnded func(ServeEndedInfo)

	// PeerConnected is called when a pipe to a worker has been opened by either end. A worker that
	// calls itself has pipes to itself.
	PeerConnected func(PeerConnectedInfo)

	// PeerLost is called when a pipe to a worker has ended, for whatever reason.
	PeerLost func(PeerLostInfo)

	// WorkerJoined is called when this agent learns of a worker in the group, and WorkerLeft when
	// it learns that one has left or was removed. For a worker that has restarted both are called.
	// Agent.Watch, which also knows of lost workers, is for applications.
	WorkerJoined func(WorkerJoinedInfo)
	WorkerLeft   func(WorkerLeftInfo)

	// Closed is called when the agent is closed, also by a Join that fails, before Close returns.
	Closed func(ClosedInfo)
}

// CallID identifies a call that this worker makes, or a request that it serves.
type CallID struct {
	Number     uint64 // counts the reported calls, or requests, of this agent from 1
	Peer       string // the name of the other worker; of a call whose worker is not known, the destination
	Type, Name string // see Request.Type and Request.Name
}

// CallStartedInfo describes a call that begins.
type CallStartedInfo struct {
	Call  CallID
	Start time.Time
}

// CallEndedInfo describes a call that has ended. The sizes include heads and tensors, but not the
// values of streams.
type CallEndedInfo struct {
	Call         CallID
	RequestBytes int // 0 if there was no request, since no pipe could be opened for example
	ReplyBytes   int // 0 if no reply was read
	Start        time.Time
	Duration     time.Duration

	// Err is nil, or the error of the call. It is a *PanicError if a function of the application,
	// such as an interceptor, panicked during the call.
	Err error
}

// ServeStartedInfo describes a request that has arrived.
type ServeStartedInfo struct {
	Call         CallID
	RequestBytes int
	Start        time.Time
}

// ServeEndedInfo describes a request that has been replied to. The sizes include heads and tensors,
// but not the values of streams.
type ServeEndedInfo struct {
	Call         CallID
	RequestBytes int
	ReplyBytes   int
	Start        time.Time
	Queued       time.Duration // from Start until the handler began; 0 if it did not
	Duration     time.Duration // from Start until the reply was sent or lost

	// Err is the error that was the reply, or with which sending the reply failed. For the repeated
	// failure of a function that is served WithOnce it is ErrRepeated.
	Err error
}

// ErrRepeated stands for the error of an earlier run of a function that is served WithOnce, in
// ServeEndedInfo.
var ErrRepeated = errors.New("failure sent again")

// PeerConnectedInfo describes a pipe that has been opened.
type PeerConnectedInfo struct {
	Worker  WorkerInfo
	Address string     // of the other end
	Plan    *pipe.Plan // must not be changed
}

// PeerLostInfo describes a pipe that has ended. Err matches ErrClosed if this agent is closed, and
// ErrUnreachable otherwise; it matches pipe.ErrPeerClosed if the worker has closed the pipe in
// order.
type PeerLostInfo struct {
	Worker  WorkerInfo
	Address string
	Err     error
}

// WorkerJoinedInfo describes a worker, other than this one, that is in the group.
type WorkerJoinedInfo struct {
	Worker WorkerInfo
	Client bool // see Config.Client
}

// WorkerLeftInfo describes a worker that is no longer in the group.
type WorkerLeftInfo struct {
	Worker WorkerInfo
	Client bool
}

// ClosedInfo describes an agent that is closed. Err is the error of Close or Shutdown.
type ClosedInfo struct {
	Err error
}

// reportCallStarted calls Events.CallStarted, if it is set, for the call c, which begins. It gives
// c the number by which events identify the call.
func (a *Agent) reportCallStarted(c *call) {
	if a.events.CallStarted != nil || a.events.CallEnded != nil {
		c.eventNumber = a.callCount.Add(1)
	}
	if a.events.CallStarted != nil {
		a.events.CallStarted(CallStartedInfo{CallID{c.eventNumber, a.nameOf(c.to), c.typ, c.name}, c.begun})
	}
}

// reportCallEnded runs the functions of OnEnd of the request of c, a call that has ended, and calls
// Events.CallEnded, if it is set. err is the error of the call, or nil if the call has a result.
func (a *Agent) reportCallEnded(c *call, err error) {
	c.ends.run(c.outcome, err)
	if a.events.CallEnded != nil {
		a.events.CallEnded(CallEndedInfo{
			Call:         CallID{c.eventNumber, a.nameOf(c.to), c.typ, c.name},
			RequestBytes: c.requestBytes, ReplyBytes: c.replyBytes,
			Start: c.begun, Duration: time.Since(c.begun), Err: err,
		})
	}
}

// reportServeStarted calls Events.ServeStarted, if it is set, for the request r, which has arrived.
// If Events.ServeEnded is set, it also creates r.event, in which later steps note how r ends.
func (a *Agent) reportServeStarted(r *Request) {
	if a.events.ServeStarted == nil && a.events.ServeEnded == nil {
		return
	}
	d := r.message.incoming.Descriptor()
	started := ServeStartedInfo{
		Call:         CallID{a.requestCount.Add(1), r.conn.peer.Name, r.handler.typ, r.handler.name},
		RequestBytes: len(d.Metadata) + d.Bytes(), Start: r.begun,
	}
	if a.events.ServeEnded != nil {
		r.event = &ServeEndedInfo{Call: started.Call, RequestBytes: started.RequestBytes, Start: started.Start}
	}
	if a.events.ServeStarted != nil {
		a.events.ServeStarted(started)
	}
}

// reportServeEnded calls Events.ServeEnded, if it is set, for the request r, whose reply has been
// sent or lost. It does nothing if the start of r was not reported.
func (a *Agent) reportServeEnded(r *Request) {
	if a.events.ServeEnded != nil && r.event != nil {
		r.event.Duration = time.Since(r.event.Start)
		a.events.ServeEnded(*r.event)
	}
}
