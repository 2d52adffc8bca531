package pipe

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/internal/quota"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// brochureMemory is how many times its bytes a brochure takes at most while it is
	// decoded and chosen from, see wire.Limits.
	brochureMemory = 40

	// routeMemory is what a pair of devices takes for as long as the pipe lives, in the
	// choice, the plan and the lanes.
	routeMemory = 512
)

// welcome is the listening end's part of the handshake for one accepted
// connection: the first of a pipe, or a further one that brings an id.
func (l *Listener) welcome(transportName string, conn transport.Conn) {
	ctx, cancel := l.context.handshakeContext(l.closing)
	defer cancel()
	ctx, evict := context.WithCancelCause(ctx)
	defer evict(nil)
	w := &welcomer{listener: l, opening: newOpening(ctx), transport: transportName}
	w.account = l.context.unadmitted.Open(func() { evict(l.context.unadmittedError()) })
	defer func() { w.account.Close() }()
	w.leave = func() { l.context.strangers.Add(-1) }
	defer w.opening.abandon()
	if err := w.serve(ctx, conn); err != nil {
		w.report(conn, err) // first: who finds the place free, if it still has one, finds it counted
	}
	w.leave()
}

// report notes, once, that the handshake failed.
func (w *welcomer) report(conn transport.Conn, err error) {
	l := w.listener
	if w.reported || l.closing.Err() != nil {
		return
	}
	w.reported = true
	l.context.counters.handshakesFailed.Add(1)
	l.context.log.Warn("handshake failed", "peer", conn.RemoteAddr(), "error", w.opening.explain(err))
}

// welcomer is the state of one such handshake.
type welcomer struct {
	listener  *Listener
	opening   *opening
	transport string // of the accepted connection
	chosen    string // transport of those to come
	tickets   []*ticket
	reported  bool           // the failure of the handshake
	account   *quota.Account // nil once the pipe has it
	leave     func()         // gives back its place among the handshakes in progress
}

func (w *welcomer) serve(ctx context.Context, conn transport.Conn) error {
	if err := w.opening.add(conn); err != nil {
		return err
	}
	w.opening.phase = phasePacket
	packet, err := w.readPacket(conn)
	if err != nil {
		return err
	}
	w.leave()
	w.leave = func() {} // only the opening of a pipe takes a place again
	switch packet := packet.(type) {
	case wire.RequestedConnection:
		return w.deliver(packet.RegistrationID, conn)
	case wire.SpontaneousConnection:
		if !w.listener.context.openings.TryAcquire(1) {
			w.listener.refused(conn)
			return nil
		}
		w.leave = func() { w.listener.context.openings.Release(1) }
		p, err := w.open(packet.ContextName, conn)
		if err != nil {
			return err
		}
		w.opening.phase = phaseAccept
		return w.queue(ctx, p)
	default:
		return protocolError("first packet is a %T", packet)
	}
}

func (w *welcomer) readPacket(conn transport.Conn) (wire.Packet, error) {
	limits := w.listener.context.limits
	held := charge{context: w.listener.context, account: w.account}
	defer held.release()
	frame, err := readFrame(conn, nil, limits.HandshakeBytes, &held)
	if err != nil {
		return nil, classify(err)
	}
	packet, err := wire.DecodePacket(frame, limits.wire())
	if err != nil {
		return nil, protocolError("first packet: %w", err)
	}
	return packet, nil
}

// deliver hands a further connection to the pipe that waits for it.
func (w *welcomer) deliver(id uint64, conn transport.Conn) error {
	if err := w.opening.settle(); err != nil {
		return err
	}
	if !w.listener.meet.deliver(id, w.transport, conn) {
		conn.Close()
		return protocolError("connection with id %d, which no pipe waits for", id)
	}
	return nil
}

// open reads the peer's brochure, answers it and waits for the connections
// that the answer asks for.
func (w *welcomer) open(peer string, first transport.Conn) (*Pipe, error) {
	limits := w.listener.context.limits
	w.opening.phase = phaseBrochure
	held := charge{context: w.listener.context, account: w.account}
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
	s, err := w.choose(brochure, first)
	if err != nil {
		if w.listener.context.overture(brochure).marked {
			w.refuse(first, err)
		}
		return nil, err
	}
	held.shrink(routeMemory * len(s.routes)) // until the account is closed
	s.peer, s.remoteAddr = peer, first.RemoteAddr()
	defer w.cancelTickets()
	if err := w.meet(s, first); err != nil {
		s.abandon()
		return nil, err
	}
	s.account, w.account = w.account, nil
	p, err := w.listener.context.build(w.opening, s)
	if err != nil {
		s.abandon()
	}
	return p, err
}

// meet sends the answer and collects the pipe's connections. They may come in
// any order.
func (w *welcomer) meet(s *spec, first transport.Conn) error {
	answer, desc := w.answer(s, first)
	reply, control := w.answerConnections(s, &answer)
	w.answerChannels(s, &answer)
	answer.AddSizes(s.sizes)
	answer.AddProbing(s.probing)
	if s.native && desc == nil {
		if err := w.listener.context.prepareSession(s, first); err != nil {
			w.refuse(first, err)
			return err
		}
	}
	if s.native {
		w.opening.linger()
	}
	w.opening.phase = phaseReply
	if err := first.WriteFrames(transport.Frame{answer.Append(nil)}); err != nil {
		return classify(err)
	}
	var err error
	if len(s.probing.Offers) > 0 {
		w.opening.phase = phaseVerdict
		if err = w.verdict(first); err != nil {
			return err
		}
	}
	s.desc = first
	if desc != nil {
		w.opening.phase = phaseArrival
		if s.desc, err = w.awaitMove(s, desc, first); err != nil {
			return err
		}
	}
	switch {
	case s.native && desc != nil:
		return w.acceptMove(s, desc.id)
	case s.native:
		return nil
	}
	return w.meetFurther(s, reply, control)
}

// meetFurther collects what the compatible dialect has beside the descriptor
// connection.
func (w *welcomer) meetFurther(s *spec, reply, control *ticket) (err error) {
	vigil, ctx, stop := w.keepVigil(s.desc)
	defer stop()
	s.vigil = vigil
	w.opening.phase = phaseOthers
	if s.reply, err = w.await(ctx, reply); err != nil {
		return err
	}
	if control != nil {
		if s.control, err = w.await(ctx, control); err != nil {
			return err
		}
	}
	return w.meetChannels(ctx, s)
}

// answerConnections adds the connections of the dialect, beside the first. What
// only an end of ours understands it says only to one.
func (w *welcomer) answerConnections(s *spec, answer *wire.BrochureAnswer) (reply, control *ticket) {
	if s.native {
		// The pipe's own, not this handshake's: it may be used much later.
		s.bulkTicket = w.listener.meet.expect(w.chosen)
		answer.TransportRegistrationIDs[wire.BulkConnection] = s.bulkTicket.id
		answer.Mark(wire.Marker{MinVersion: wire.VersionNative, MaxVersion: wire.VersionNative, Features: s.features})
		return nil, nil
	}
	reply = w.expect()
	answer.TransportRegistrationIDs[wire.ReplyConnection] = reply.id
	if s.features&wire.FeatureControl != 0 {
		control = w.expect()
		answer.TransportRegistrationIDs[wire.ControlConnection] = control.id
		answer.Mark(wire.Marker{Features: s.features})
	}
	return reply, control
}

// answer builds the brochure answer; its tickets are the connections to come.
// desc is nil if the first connection goes on as the descriptor connection.
func (w *welcomer) answer(s *spec, first transport.Conn) (answer wire.BrochureAnswer, desc *ticket) {
	r := w.listener.context.registry
	entry, _ := r.transport(s.plan.Transport)
	w.chosen = entry.Name
	answer = wire.BrochureAnswer{
		Transport:                 entry.Name,
		Address:                   w.listener.advertise(entry.Name, w.transport, first),
		TransportRegistrationIDs:  map[uint64]uint64{},
		TransportDomainDescriptor: entry.Transport.DomainDescriptor(),
		ChannelRegistrationIDs:    map[string][]uint64{},
		ChannelDeviceDescriptors:  map[string]deviceDescriptors{},
		ChannelForDevicePair:      map[wire.DevicePair]string{},
	}
	if entry.Name != w.transport {
		desc = w.expect()
		answer.TransportRegistrationIDs[wire.DescriptorConnection] = desc.id
	}
	return answer, desc
}

func (w *welcomer) answerChannels(s *spec, answer *wire.BrochureAnswer) {
	for _, e := range w.listener.context.registry.selected(s.routes) {
		ch := channelSpec{entry: e}
		ids := []uint64{}
		if !s.native {
			for range e.Factory.Connections(false) {
				t := w.expect()
				ch.tickets = append(ch.tickets, t)
				ids = append(ids, t.id)
			}
		}
		s.channels = append(s.channels, ch)
		answer.ChannelRegistrationIDs[e.Name] = ids
		answer.ChannelDeviceDescriptors[e.Name] = e.Factory.DeviceDescriptors()
	}
	for pair, way := range s.routes {
		answer.ChannelForDevicePair[wire.DevicePair{Server: pair.local, Client: pair.remote}] = way[0].channel
	}
}

func (w *welcomer) meetChannels(ctx context.Context, s *spec) error {
	for i := range s.channels {
		ch := &s.channels[i]
		for _, t := range ch.tickets {
			conn, err := w.await(ctx, t)
			if err != nil {
				return err
			}
			ch.conns = append(ch.conns, conn)
		}
	}
	return nil
}

func (w *welcomer) expect() *ticket {
	t := w.listener.meet.expect(w.chosen)
	w.tickets = append(w.tickets, t)
	return t
}

func (w *welcomer) await(ctx context.Context, t *ticket) (transport.Conn, error) {
	conn, err := t.wait(ctx)
	if err != nil {
		return nil, err
	}
	return conn, w.opening.add(conn)
}

func (w *welcomer) cancelTickets() {
	for _, t := range w.tickets {
		t.cancel()
	}
}

// queue puts the open pipe where Accept finds it.
func (w *welcomer) queue(ctx context.Context, p *Pipe) error {
	l := w.listener
	select {
	case l.accepted <- p:
		l.context.counters.handshakesDone.Add(1)
		return nil
	case <-ctx.Done():
		p.Abort(ErrClosed)
		return context.Cause(ctx)
	}
}
