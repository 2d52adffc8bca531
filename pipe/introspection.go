package pipe

import (
	"errors"
	"sync/atomic"
	"time"
)

// Events are functions that report what happens to the pipes of a [Context], for traces and
// metrics. Each may be nil. A nil function costs neither an allocation nor a reading of the clock.
//
// The functions are called synchronously: by the goroutine that opens the pipe or calls Write, Read
// or WriteOp.Wait, by a goroutine of the pipe, or by the one that ends a write whose context or
// deadline has ended. It may hold locks of the pipe. The functions must not block, must not wait
// for a lock that is held during a call of the pipe, and must not call methods of a Pipe, an
// Incoming, a WriteOp, a Listener or a Context. They may be called concurrently, also for one pipe.
//
// The events of one pipe come in this order: CandidateRejected for each entry of Plan.Refused;
// Opened, before Dial or Accept returns the pipe; the events of messages and writers, each before
// the call that it is about returns; at most one PeerLost; and Closed, before Done is closed. A
// pipe that could not be opened has no events. Messages that the application writes or reads once
// the pipe has ended, or that fail because of that, may still be reported after Closed.
type Events struct {
	// Opened is called once the pipe is open.
	Opened func(OpenedInfo)

	// CandidateRejected is called for each path that the pipe could have used and does not.
	CandidateRejected func(RejectedInfo)

	// MessageWritten is called when the memory of a message that was given to Write, TryWrite,
	// WriteConfirmed or WriteAsync may be reused, or after the message has failed. It is not
	// called for a message that TryWrite does not accept.
	MessageWritten func(WrittenInfo)

	// MessageRead is called when a call of Read or Discard ends.
	MessageRead func(ReadInfo)

	// WriterBlocked is called when the wait of a writer for a budget ends. Waits for the peer are
	// not reported.
	WriterBlocked func(BlockedInfo)

	// PeerLost is called when the pipe finds that the peer is lost; see ErrPeerLost. Messages that
	// were received before may still be read.
	PeerLost func(PeerLostInfo)

	// Closed is called once the pipe has ended and has released the memory of all calls that it has
	// ended.
	Closed func(ClosedInfo)
}

// PipeID identifies the pipe of an event.
type PipeID struct {
	Number uint64 // counts the pipes of the context that have been opened, from 1; see Pipe.Number
	Peer   string // the name and address of the other end, as in errors
}

// OpenedInfo describes a pipe that has been opened.
type OpenedInfo struct {
	Pipe PipeID
	Plan *Plan // must not be changed
}

// RejectedInfo describes a candidate that a pipe does not use, with the reason.
type RejectedInfo struct {
	Pipe      PipeID
	Candidate Refusal
}

// WrittenInfo describes a call that wrote one message, or failed to write it.
type WrittenInfo struct {
	Pipe          PipeID
	MetadataBytes int
	Bytes         int // of payloads and tensors
	Start         time.Time

	// Duration is the time from the call, at Start, until the memory of the message may be reused;
	// for WriteConfirmed until the peer has read it.
	Duration time.Duration

	Err error // nil if the message was written
}

// ReadInfo describes a call of Read or Discard for one message, which may have failed.
type ReadInfo struct {
	Pipe          PipeID
	MetadataBytes int
	Bytes         int // of payloads and tensors
	Start         time.Time
	Duration      time.Duration // of the call of Read or Discard, which began at Start
	Discarded     bool
	Err           error // nil if the message was read or discarded
}

// WriteBudget names a bound on the bytes for which a writer may have to wait. It is the name of a
// field of Limits.
type WriteBudget string

const (
	BudgetPipe       WriteBudget = "PipeBytesInFlight"
	BudgetContext    WriteBudget = "ContextBytesInFlight"
	BudgetUnadmitted WriteBudget = "UnadmittedBytes"
)

// BlockedInfo describes the wait of a writer for a budget.
type BlockedInfo struct {
	Pipe     PipeID
	Budget   WriteBudget
	Bytes    int // that the writer waited for; 0 for BudgetUnadmitted
	Start    time.Time
	Duration time.Duration
	Acquired bool // false if the write was cancelled or the pipe closed first
}

// PeerLostInfo describes the loss of a peer. Err matches ErrPeerLost.
type PeerLostInfo struct {
	Pipe PipeID
	Err  error
}

// ClosedInfo describes a pipe that has ended. Err is what Pipe.Err returns: it matches ErrClosed if
// this end has closed the pipe.
type ClosedInfo struct {
	Pipe PipeID
	Err  error
}

// Number returns the number of the pipe in its context, which events have in their PipeID. The
// context counts the pipes that it opens from 1.
func (p *Pipe) Number() uint64 { return p.id.Number }

// reportOpened calls Events.CandidateRejected for each rejected candidate of p's plan, and then
// Events.Opened. It skips event functions that are nil.
func (p *Pipe) reportOpened() {
	e := p.events
	if e == nil {
		return
	}
	if e.CandidateRejected != nil {
		for _, r := range p.plan.Refused {
			e.CandidateRejected(RejectedInfo{p.id, r})
		}
	}
	if e.Opened != nil {
		e.Opened(OpenedInfo{p.id, p.plan})
	}
}

// reportLost calls Events.PeerLost if cause, the error with which p or its receiving half has
// ended, matches ErrPeerLost. A second loss of p is not reported. reportLost does nothing if p was
// never registered with its context, or if the event function is nil.
func (p *Pipe) reportLost(cause error) {
	e := p.events
	if e == nil || e.PeerLost == nil || p.id.Number == 0 || !errors.Is(cause, ErrPeerLost) {
		return
	}
	if p.lostReported.CompareAndSwap(false, true) {
		e.PeerLost(PeerLostInfo{p.id, cause})
	}
}

// beginWritten returns the event of a write of m that begins now, with the sizes of m; m may be
// nil. The caller completes it with reportWritten.
func (p *Pipe) beginWritten(m *Message) WrittenInfo {
	info := WrittenInfo{Pipe: p.id, Start: time.Now()}
	if m != nil {
		info.MetadataBytes = len(m.Metadata)
		for i := range m.Payloads {
			info.Bytes = addSizes(info.Bytes, len(m.Payloads[i].Data))
		}
		for i := range m.Tensors {
			info.Bytes = addSizes(info.Bytes, m.Tensors[i].Buffer.Len())
		}
	}
	return info
}

// reportWritten sets the duration and the result err of the write in info, calls
// Events.MessageWritten, which must not be nil, and returns err.
func (p *Pipe) reportWritten(info WrittenInfo, err error) error {
	info.Duration, info.Err = time.Since(info.Start), err
	p.events.MessageWritten(info)
	return err
}

// beginRead returns the event of a call of Read or Discard that begins now, with the sizes of the
// message. The caller completes it with reportRead.
func (in *Incoming) beginRead() ReadInfo {
	return ReadInfo{Pipe: in.pipe.id, MetadataBytes: len(in.desc.Metadata), Bytes: in.desc.Bytes(), Start: time.Now()}
}

// reportRead sets the duration and the result err of the call of Read or Discard in info, calls
// Events.MessageRead, which must not be nil, and returns err.
func (in *Incoming) reportRead(info ReadInfo, err error) error {
	info.Duration, info.Err = time.Since(info.Start), err
	in.pipe.events.MessageRead(info)
	return err
}

// waitReported calls wait, then calls Events.WriterBlocked, which must not be nil, with the budget
// b, the number n of bytes and the duration of the wait, and returns the result of wait. wait
// blocks until n bytes of b are acquired and reports whether they are. The caller has found that
// the bytes are not available at once.
func (p *Pipe) waitReported(b WriteBudget, n int, wait func() bool) bool {
	info := BlockedInfo{Pipe: p.id, Budget: b, Bytes: n, Start: time.Now()}
	info.Acquired = wait()
	info.Duration = time.Since(info.Start)
	p.events.WriterBlocked(info)
	return info.Acquired
}

// Traffic counts messages and bytes of one direction.
type Traffic struct {
	Messages uint64 // or tensors, for a channel; or parts, for compression
	Bytes    uint64
}

// traffic holds the counters of a Traffic. It can be updated concurrently.
type traffic struct{ messages, bytes atomic.Uint64 }

func (t *traffic) add(n int) { t.addMany(Traffic{1, uint64(n)}) }

func (t *traffic) addMany(n Traffic) {
	if n.Messages > 0 {
		t.messages.Add(n.Messages)
		t.bytes.Add(n.Bytes)
	}
}

func (t *traffic) snapshot() Traffic {
	return Traffic{Messages: t.messages.Load(), Bytes: t.bytes.Load()}
}

// PipeStats are the counters of one pipe since it was opened.
type PipeStats struct {
	Sent, Received Traffic        // complete messages; bytes of payloads and tensors
	BytesInFlight  int            // of messages whose writes have not completed
	BytesReadAhead int            // of messages received before the application asked for them
	Channels       []ChannelStats // ordered by name; all other bytes are carried by the transport
	Compression    CompressionStats

	// Progress grows by the number of bytes while a Read receives or decompresses parts that are
	// not inline, after each MiB at most (2 MiB with the cma channel). If it stands still during a
	// Read, that Read waits for the peer. Inline parts, and channels that do not report progress,
	// only show in Received.
	Progress uint64
}

// arrived adds bytes to PipeStats.Progress. It may be called concurrently.
func (p *Pipe) arrived(bytes int) { p.progress.Add(uint64(bytes)) }

// ChannelStats are the counters of one channel of a pipe, in bytes as transferred.
type ChannelStats struct {
	Name           string
	Sent, Received Traffic // tensors, without empty and inline ones
}

// Stats returns a copy of the counters of the pipe. The counters are read one after the other, so
// they may be inconsistent with each other while messages are sent or received. It may be called
// after the pipe has ended.
func (p *Pipe) Stats() PipeStats {
	s := p.engine.stats()
	s.Sent = p.sender.traffic.snapshot()
	s.BytesInFlight = p.sender.budget.own.InUse()
	s.Compression.Plain = p.plain.snapshot()
	s.Progress = p.progress.Load()
	for _, l := range p.channels {
		s.Channels = append(s.Channels, ChannelStats{l.name, l.sent.snapshot(), l.received.snapshot()})
	}
	return s
}

// counters are the counters of a context.
type counters struct {
	handshakesDone     atomic.Uint64
	handshakesFailed   atomic.Uint64
	connectionsRefused atomic.Uint64
	pipesOpened        atomic.Uint64
	pipesClosed        atomic.Uint64
}

// ContextStats are the counters of a context since it was made.
type ContextStats struct {
	PipesOpen            int
	PipesOpened          uint64
	HandshakesDone       uint64 // of clients and servers
	HandshakesFailed     uint64
	HandshakesInProgress int    // accepted connections that do not belong to a pipe yet
	ConnectionsRefused   uint64 // closed at once because too many handshakes were in progress
	BytesInFlight        int
	ConnsOpen            int    // of clients and servers
	ConnSessionsOpen     int    // sessions that carry them
	BytesUnadmitted      int    // see Limits.UnadmittedBytes
	PeersEvicted         uint64 // disconnected because of that limit
}

// Stats returns a copy of the counters of the context. The counters are read one after the other,
// so they may be inconsistent with each other. It may be called after Close.
func (c *Context) Stats() ContextStats {
	closed := c.counters.pipesClosed.Load()
	opened := c.counters.pipesOpened.Load()
	unadmitted, evicted := c.unadmitted.Used()
	conns, sessions := c.countConns()
	return ContextStats{
		PipesOpen:            int(opened - closed),
		PipesOpened:          opened,
		HandshakesDone:       c.counters.handshakesDone.Load(),
		HandshakesFailed:     c.counters.handshakesFailed.Load(),
		HandshakesInProgress: int(c.unidentified.Load()) + c.openingPipes.InUse(),
		ConnectionsRefused:   c.counters.connectionsRefused.Load(),
		BytesInFlight:        c.inFlight.InUse(),
		ConnsOpen:            conns,
		ConnSessionsOpen:     sessions,
		BytesUnadmitted:      unadmitted,
		PeersEvicted:         evicted,
	}
}
