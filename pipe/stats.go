package pipe

import "sync/atomic"

// Traffic counts what went one way.
type Traffic struct {
	Messages uint64 // or tensors, for a channel; or parts, for compression
	Bytes    uint64
}

// traffic is a Traffic under way.
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
	Sent, Received Traffic        // whole messages: payload and tensor bytes
	BytesInFlight  int            // given to Write and not through yet
	BytesReadAhead int            // taken in and not asked for yet
	Channels       []ChannelStats // ordered by name; all other bytes travel on the transport
	Compression    CompressionStats

	// Progress grows while a Read receives or decompresses payloads and tensors that do
	// not travel inline: after a MiB at most, or 2 over cma, by the number of bytes. A Read
	// under way during which it stands still waits for the peer. What inline parts, and
	// channels that do not report, have brought shows in Received alone.
	Progress uint64
}

// arrived counts bytes towards Progress.
func (p *Pipe) arrived(bytes int) { p.progress.Add(uint64(bytes)) }

// ChannelStats are the counters of one channel of a pipe, in bytes as they
// travel.
type ChannelStats struct {
	Name           string
	Sent, Received Traffic // tensors, without empty and inline ones
}

// Stats returns the counters of the pipe. The sum of the parts may be off by
// what happens meanwhile.
func (p *Pipe) Stats() PipeStats {
	s := p.dialect.stats()
	s.Compression.Plain = p.plain.snapshot()
	s.Progress = p.progress.Load()
	for _, l := range p.channels {
		s.Channels = append(s.Channels, ChannelStats{l.name, l.sent.snapshot(), l.received.snapshot()})
	}
	return s
}

// counters are those of a context.
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
	HandshakesDone       uint64 // at either end
	HandshakesFailed     uint64
	HandshakesInProgress int    // accepted connections that are no part of a pipe yet
	ConnectionsRefused   uint64 // closed at once, since too many handshakes were in progress
	BytesInFlight        int
	BytesUnadmitted      int    // see Limits.UnadmittedBytes
	PeersEvicted         uint64 // disconnected because of that limit
}

// Stats returns the counters of the context.
func (c *Context) Stats() ContextStats {
	closed := c.counters.pipesClosed.Load()
	opened := c.counters.pipesOpened.Load()
	unadmitted, evicted := c.unadmitted.Used()
	return ContextStats{
		PipesOpen:            int(opened - closed),
		PipesOpened:          opened,
		HandshakesDone:       c.counters.handshakesDone.Load(),
		HandshakesFailed:     c.counters.handshakesFailed.Load(),
		HandshakesInProgress: int(c.strangers.Load()) + c.openings.InUse(),
		ConnectionsRefused:   c.counters.connectionsRefused.Load(),
		BytesInFlight:        c.inFlight.InUse(),
		BytesUnadmitted:      unadmitted,
		PeersEvicted:         evicted,
	}
}
