package pipe

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/internal/quota"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// brochureMemory is the most memory that decoding a brochure and choosing from it
	// takes, as a multiple of its size on the wire; see wire.Limits.
	brochureMemory = 40

	// routeMemory is the memory that a pair of devices takes while the pipe lives, in the
	// routes, the plan and the lanes, in bytes.
	routeMemory = 512
)

// serverHandshake is the server's handshake on one accepted connection, the first of a pipe or a
// further one. Only the goroutine of handleConn uses it.
type serverHandshake struct {
	listener    *Listener
	conns       *handshakeConns
	transport   string // of the accepted connection
	chosen      string // the transport of the further connections
	pending     []*pendingConn
	reported    bool           // the failure was counted and logged
	account     *quota.Account // nil once the pipe owns it
	releaseSlot func()         // releases the slot among the handshakes in progress
}

// handleConn serves an accepted connection: the first one of a pipe, or a further one. It returns once
// the pipe is queued for Accept, the connection is delivered, or the handshake has failed and conn is
// closed. It releases the slot that acceptConnections took for conn.
func (l *Listener) handleConn(transportName string, conn transport.Conn) {
	ctx, cancel := l.context.handshakeContext(l.closing)
	defer cancel()
	ctx, evict := context.WithCancelCause(ctx)
	defer evict(nil)
	h := &serverHandshake{listener: l, conns: newHandshakeConns(ctx), transport: transportName}
	h.account = l.context.unadmitted.Open(func() { evict(l.context.unadmittedError()) })
	defer func() { h.account.Close() }()
	h.releaseSlot = func() { l.context.unidentified.Add(-1) }
	defer h.conns.close()
	if err := h.serve(ctx, conn); err != nil {
		h.reportFailure(conn, err) // counted before the slot is released
	}
	h.releaseSlot()
}

// reportFailure counts the failure of the handshake and logs err. Only the first call of a
// handshake has an effect, and none after the listener was closed.
func (h *serverHandshake) reportFailure(conn transport.Conn, err error) {
	l := h.listener
	if h.reported || l.closing.Err() != nil {
		return
	}
	h.reported = true
	l.context.counters.handshakesFailed.Add(1)
	l.context.log.Warn("handshake failed", "peer", conn.RemoteAddr(), "error", h.conns.wrapError(err))
}

// serve reads the first packet of conn. If it identifies a further connection, serve delivers conn
// to the handshake or pipe that expects it. If it begins a pipe, serve opens the pipe and queues it
// for Accept, or rejects it when too many are being opened. Other packets are errors that match
// ErrProtocol.
func (h *serverHandshake) serve(ctx context.Context, conn transport.Conn) error {
	if err := h.conns.add(conn); err != nil {
		return err
	}
	h.conns.phase = phasePacket
	limits := h.listener.context.limits
	held := charge{context: h.listener.context, account: h.account}
	defer held.release()
	frame, err := readFrame(conn, nil, limits.HandshakeBytes, &held)
	if err != nil {
		return classify(err)
	}
	packet, err := wire.DecodePacket(frame, limits.wire())
	if err != nil {
		return protocolError("first packet: %w", err)
	}
	held.release()
	h.releaseSlot()
	h.releaseSlot = func() {} // only the first connection of a pipe takes another slot
	switch packet := packet.(type) {
	case wire.RequestedConnection:
		if err := h.conns.detach(); err != nil {
			return err
		}
		if !h.listener.matcher.deliver(packet.RegistrationID, h.transport, conn) {
			conn.Close()
			return protocolError("connection with id %d, which no pipe expects", packet.RegistrationID)
		}
		return nil
	case wire.SpontaneousConnection:
		if !h.listener.context.openingPipes.TryAcquire(1) {
			h.listener.countRejected(conn)
			return nil
		}
		h.releaseSlot = func() { h.listener.context.openingPipes.Release(1) }
		p, err := h.open(packet.ContextName, conn)
		if err != nil {
			return err
		}
		h.conns.phase = phaseAccept
		return h.enqueue(ctx, p)
	default:
		return protocolError("first packet is a %T", packet)
	}
}

// open reads the client's brochure, answers it, collects the connections that the answer asks for
// and builds the pipe, which then owns h.account. A choice that fails is reported to clients of
// this library. On failure the caller closes h.conns.
func (h *serverHandshake) open(peer string, first transport.Conn) (*Pipe, error) {
	limits := h.listener.context.limits
	h.conns.phase = phaseBrochure
	held := charge{context: h.listener.context, account: h.account}
	frame, err := readFrame(first, nil, limits.HandshakeBytes, &held)
	if err != nil {
		return nil, classify(err)
	}
	if err := held.grow(brochureMemory * len(frame)); err != nil {
		return nil, err
	}
	brochure, err := wire.DecodeBrochure(frame, limits.wire())
	if err != nil {
		return nil, protocolError("brochure: %w", err)
	}
	offer := clientOffer{Brochure: brochure}
	offer.marker, offer.marked = brochure.Marker()
	offer.marked = offer.marked && !h.listener.context.hideMarker
	if offer.marked { // what looks like an addition of another client is ignored
		offer.probing, offer.preferences = brochure.Probing(), brochure.Preferences()
	}
	s, err := h.choose(offer, first)
	if err != nil {
		if offer.marked {
			h.reject(first, err)
		}
		return nil, err
	}
	held.shrink(routeMemory * len(s.routes)) // until the account is closed
	s.peer, s.remoteAddr = peer, first.RemoteAddr()
	defer func() {
		for _, t := range h.pending {
			t.cancel()
		}
	}()
	if err := h.connect(s, first); err != nil {
		s.release()
		return nil, err
	}
	s.account, h.account = h.account, nil
	p, err := h.listener.context.build(h.conns, s)
	if err != nil {
		s.release()
	}
	return p, err
}

// connect sends the answer on first, waits for the client's report on probed channels, and collects
// the pipe's connections in s; they may arrive in any order.
func (h *serverHandshake) connect(s *spec, first transport.Conn) error {
	answer, desc, reply, control := h.newAnswer(s, first)
	answer.AddSizes(s.sizes)
	answer.AddProbing(s.probing)
	if s.native && desc == nil {
		if err := h.listener.context.prepareSession(s, first); err != nil {
			h.reject(first, err)
			return err
		}
	}
	if s.native {
		h.conns.delayClose()
	}
	h.conns.phase = phaseReply
	if err := first.WriteFrames(transport.Frame{answer.Append(nil)}); err != nil {
		return classify(err)
	}
	var err error
	if len(s.probing.Offers) > 0 {
		h.conns.phase = phaseProbeResult
		if err = h.awaitProbeResult(first); err != nil {
			return err
		}
	}
	s.desc = first
	if desc != nil {
		h.conns.phase = phaseMoved
		if s.desc, err = h.awaitMovedConn(s, desc, first); err != nil {
			return err
		}
	}
	switch {
	case s.native && desc != nil:
		return h.confirmMove(s, desc.id)
	case s.native:
		return nil
	}
	return h.collectConns(s, reply, control)
}

// newAnswer returns the answer for s, with the ids of the connections that the client is to open, and
// enters the channels in s. It also returns the expected connections. desc replaces first as the
// descriptor connection; it is nil if first remains. reply and control belong to the compatible dialect
// and are nil in the native one; control is also nil for a C++ client. A client of this library gets
// the marker.
func (h *serverHandshake) newAnswer(s *spec, first transport.Conn) (answer wire.BrochureAnswer, desc, reply, control *pendingConn) {
	entry, _ := h.listener.context.registry.transport(s.plan.Transport)
	h.chosen = entry.Name
	addr := h.listener.endpoints[entry.Name].Addr()
	if t, ok := entry.Transport.(transport.AddressTranslator); ok && entry.Name == h.transport {
		addr = t.Advertise(addr, first)
	}
	answer = wire.BrochureAnswer{
		Transport:                 entry.Name,
		Address:                   addr,
		TransportRegistrationIDs:  map[uint64]uint64{},
		TransportDomainDescriptor: entry.Transport.DomainDescriptor(),
		ChannelRegistrationIDs:    map[string][]uint64{},
		ChannelDeviceDescriptors:  map[string]deviceDescriptors{},
		ChannelForDevicePair:      map[wire.DevicePair]string{},
	}
	ids := answer.TransportRegistrationIDs
	if entry.Name != h.transport {
		desc = h.expect()
		ids[wire.DescriptorConnection] = desc.id
	}
	if s.native {
		// Not in h.pending: the pipe owns it and may use it long after the handshake.
		s.pendingBulk = h.listener.matcher.expect(h.chosen)
		ids[wire.BulkConnection] = s.pendingBulk.id
		answer.Mark(wire.Marker{MinVersion: wire.VersionNative, MaxVersion: wire.VersionNative, Features: s.features})
	} else {
		reply = h.expect()
		ids[wire.ReplyConnection] = reply.id
	}
	if !s.native && s.features&wire.FeatureControl != 0 {
		control = h.expect()
		ids[wire.ControlConnection] = control.id
		answer.Mark(wire.Marker{Features: s.features})
	}
	for _, e := range h.listener.context.registry.used(s.routes) {
		ch := channelSpec{entry: e}
		ids := []uint64{}
		if !s.native {
			for range e.Factory.Connections(false) {
				t := h.expect()
				ch.pending = append(ch.pending, t)
				ids = append(ids, t.id)
			}
		}
		s.channels = append(s.channels, ch)
		answer.ChannelRegistrationIDs[e.Name] = ids
		answer.ChannelDeviceDescriptors[e.Name] = e.Factory.DeviceDescriptors()
	}
	for pair, rt := range s.routes {
		answer.ChannelForDevicePair[wire.DevicePair{Server: pair.local, Client: pair.remote}] = rt[0].channel
	}
	return answer, desc, reply, control
}

// collectConns waits for the connections that the compatible dialect has in addition to the
// descriptor connection, and enters them in s. It prefetches from the descriptor connection, which
// the caller must close if the handshake fails: if that connection ends, the client has died, and
// after a grace period collectConns returns the error of the connection.
func (h *serverHandshake) collectConns(s *spec, reply, control *pendingConn) (err error) {
	first := &prefetchedConn{Conn: s.desc, ready: make(chan struct{})}
	ctx, cancel := context.WithCancelCause(h.conns.ctx)
	defer cancel(nil)
	h.listener.context.work.Go(func() {
		first.size, first.err = first.Conn.NextFrame()
		close(first.ready)
		if first.err != nil {
			cancelAfterGrace(ctx, cancel, first.err)
		}
	})
	s.prefetched = first
	h.conns.phase = phaseOthers
	if s.reply, err = h.awaitConn(ctx, reply); err != nil {
		return err
	}
	if control != nil {
		if s.control, err = h.awaitConn(ctx, control); err != nil {
			return err
		}
	}
	for i := range s.channels {
		ch := &s.channels[i]
		for _, t := range ch.pending {
			conn, err := h.awaitConn(ctx, t)
			if err != nil {
				return err
			}
			ch.conns = append(ch.conns, conn)
		}
	}
	return nil
}

// expect registers a further connection over the chosen transport. It is cancelled at the end of
// the handshake, if it has not arrived.
func (h *serverHandshake) expect() *pendingConn {
	t := h.listener.matcher.expect(h.chosen)
	h.pending = append(h.pending, t)
	return t
}

// awaitConn waits for a pending connection and makes h.conns its owner. If ctx ends first it
// returns the cause of ctx.
func (h *serverHandshake) awaitConn(ctx context.Context, t *pendingConn) (transport.Conn, error) {
	conn, err := t.wait(ctx)
	if err != nil {
		return nil, err
	}
	return conn, h.conns.add(conn)
}

// enqueue queues the open pipe for Accept, waiting while the backlog is full. If ctx ends first it
// aborts the pipe and returns the cause of ctx.
func (h *serverHandshake) enqueue(ctx context.Context, p *Pipe) error {
	l := h.listener
	select {
	case l.accepted <- p:
		l.context.counters.handshakesDone.Add(1)
		return nil
	case <-ctx.Done():
		p.Abort(ErrClosed)
		return context.Cause(ctx)
	}
}
