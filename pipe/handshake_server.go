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
	transport   string            // of the accepted connection
	chosen      string            // the transport of the further connections
	noSession   map[string]string // reasons by transport; see exclusions
	pending     []*pendingConn
	reported    bool           // the failure was counted and logged
	account     *quota.Account // nil once the pipe owns it
	releaseSlot func()         // releases the slot among the handshakes in progress
}

// handleConn serves one accepted connection: the first one of a pipe or of a session of Conns, or a
// further one of a pipe or session that is being opened or is open. It returns once the pipe is
// queued for Accept, the session of Conns has started, the connection is delivered to its pipe or
// session, or the handshake has failed. A failure is logged and counted, unless the listener is
// closed, and conn is closed. In any case handleConn releases the slot that acceptConnections took
// for conn.
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

// reportFailure counts the failed handshake on conn and logs err. If it was called before for this
// handshake, or the listener is closed, it does nothing.
func (h *serverHandshake) reportFailure(conn transport.Conn, err error) {
	l := h.listener
	if h.reported || l.closing.Err() != nil {
		return
	}
	h.reported = true
	l.context.counters.handshakesFailed.Add(1)
	l.context.log.Warn("handshake failed", "peer", conn.RemoteAddr(), "error", h.conns.wrapError(err))
}

// serve reads the first packet of conn and acts on it. If the packet names a further connection,
// serve gives conn to the pipe or handshake that expects it. If the packet begins a pipe, serve
// negotiates and then either opens the pipe and queues it for Accept, or, if the client wants
// Conns, starts their session; if too many pipes are being opened, it only counts the rejection and
// returns nil. Any other packet, or an id that no pipe expects, is an error that matches
// ErrProtocol. h.conns owns conn unless it was passed on.
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
		s, err := h.negotiate(packet.ContextName, conn)
		if err != nil {
			return err
		}
		if s.maxConns > 0 {
			return h.serveConns(s)
		}
		p, err := h.listener.context.build(h.conns, s)
		if err != nil {
			s.release()
			return err
		}
		h.conns.phase = phaseAccept
		return h.enqueue(ctx, p)
	default:
		return protocolError("first packet is a %T", packet)
	}
}

// negotiate reads the client's offer from first, the first connection of the handshake, answers it,
// collects the connections that the answer asks for, and returns the spec of the pipe or session,
// which then owns h.account. peer is the name that the client sent. If no choice is possible,
// negotiate sends the reason to a client of this library. h.conns owns the connections, also on
// failure.
func (h *serverHandshake) negotiate(peer string, first transport.Conn) (*spec, error) {
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
		offer.forConns = brochure.WantsConns()
	}
	var s *spec
	if err = h.listener.accepts(offer.forConns); err == nil {
		s, err = h.choosePrepared(offer, first)
	}
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
	return s, nil
}

// connect sends the server's answer over first, the first connection of the handshake, waits for
// the client's report on probed channels, and stores the connections of the pipe in s; they may
// arrive in any order. If a native pipe moves to another connection, connect acquires the memory
// for the session there, and rejects the connection if it cannot. The error matches errRetry if the
// client repeats the handshake.
func (h *serverHandshake) connect(s *spec, first transport.Conn) error {
	answer, desc, reply, control := h.newAnswer(s, first)
	answer.AddSizes(s.sizes)
	answer.AddProbing(s.probing)
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

// newAnswer returns the server's answer for s, with new ids of the connections that the client is
// to open. It also returns these expected connections, except those of the channels, which it
// stores in s. desc is to replace first, the first connection of the handshake, as the descriptor
// connection, and is nil if that connection remains. reply and control belong to the compatible
// dialect and are nil in the native one; control is also nil for a C++ client. In the native
// dialect the expected bulk connection is in s.pendingBulk.
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
	switch {
	case s.maxConns > 0:
		answer.Mark(wire.Marker{MinVersion: wire.VersionNative, MaxVersion: wire.VersionNative, Features: s.features})
		answer.AddConns(s.maxConns)
	case s.native:
		// Not in h.pending: the pipe owns it and may use it long after the handshake.
		s.pendingBulk = h.listener.matcher.expect(h.chosen)
		ids[wire.BulkConnection] = s.pendingBulk.id
		answer.Mark(wire.Marker{MinVersion: wire.VersionNative, MaxVersion: wire.VersionNative, Features: s.features})
	default:
		reply = h.expect()
		ids[wire.ReplyConnection] = reply.id
	}
	if !s.native && s.features&wire.FeatureControl != 0 {
		control = h.expect()
		ids[wire.ControlConnection] = control.id
		answer.Mark(wire.Marker{Features: s.features})
	}
	for i := range s.channels {
		ch := &s.channels[i]
		e, ids := ch.entry, []uint64{}
		if !s.native {
			for range e.Factory.Connections(false) {
				t := h.expect()
				ch.pending = append(ch.pending, t)
				ids = append(ids, t.id)
			}
		}
		answer.ChannelRegistrationIDs[e.Name] = ids
		answer.ChannelDeviceDescriptors[e.Name] = e.descriptors()
	}
	for pair, rt := range s.routes {
		answer.ChannelForDevicePair[wire.DevicePair{Server: pair.local, Client: pair.remote}] = rt[0].channel
	}
	return answer, desc, reply, control
}

// collectConns waits for the connections that a pipe in the compatible dialect has in addition to
// its descriptor connection, and stores them in s. reply and control are two of them; control may
// be nil. While it waits, a goroutine reads the first header from s.desc ahead. If s.desc ends, the
// client has died: collectConns returns the error of s.desc, unless the other connections arrive
// within a grace period. That goroutine continues until a header arrives or s.desc is closed, so
// the caller must close s.desc if the handshake fails.
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

// expect registers a further connection over the chosen transport, which the client is to open, and
// returns it. The end of the handshake cancels the registration if the connection has not arrived.
func (h *serverHandshake) expect() *pendingConn {
	t := h.listener.matcher.expect(h.chosen)
	h.pending = append(h.pending, t)
	return t
}

// awaitConn waits for the pending connection t, makes h.conns its owner and returns it. If ctx ends
// first it returns nil and the cause of ctx. If h.conns was closed, awaitConn closes the connection
// and returns an error.
func (h *serverHandshake) awaitConn(ctx context.Context, t *pendingConn) (transport.Conn, error) {
	conn, err := t.wait(ctx)
	if err != nil {
		return nil, err
	}
	return conn, h.conns.add(conn)
}

// enqueue queues the open pipe p for Accept and counts the handshake as done. It waits while the
// queue is full. If ctx ends first it aborts p with ErrClosed and returns the cause of ctx.
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
