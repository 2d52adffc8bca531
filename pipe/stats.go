package pipe

import "sync/atomic"

// Traffic counts messages and bytes of one direction.
type Traffic struct {
	Messages uint64 // or tensors, for a channel; or parts, for compression
	Bytes    uint64
}

// traffic holds the counters of a Traffic. It can be updated concurrently.
type traffic struct{ messages, bytes atomic.Uint64 }

func (t *traffic) add(n int) {
	t.messages.Add(1)
	t.bytes.Add(uint64(n))
}

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
