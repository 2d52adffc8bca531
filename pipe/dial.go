package pipe

import (
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Dial opens a pipe to url, as in "uv://host:7000". It returns when this end
// may write. ctx and the HandshakeTimeout bound the call, not the life of the
// pipe. The error is an [*Error]; it matches ErrHandshakeTimeout, ErrPolicy,
// ErrNoTransport, ErrDialect, ErrProtocol, ErrPeerLost or the transport's own error.
func (c *Context) Dial(ctx context.Context, url string) (*Pipe, error) {
	p, err := c.dial(ctx, url)
	if err != nil {
		c.counters.handshakesFailed.Add(1)
		return nil, &Error{Op: "dial", Peer: url, Err: err}
	}
	c.counters.handshakesDone.Add(1)
	return p, nil
}

func (c *Context) dial(ctx context.Context, url string) (*Pipe, error) {
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer c.work.Done()
	entry, addr, err := c.splitURL(url)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.handshakeContext(ctx)
	defer cancel()
	without := c.without()
	for {
		if err := c.checkOffer(without); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrHandshake, err)
		}
		d := &dialer{context: c, opening: newOpening(ctx), url: url, without: without}
		p, err := d.dial(ctx, entry, addr)
		var refused *refusedPart
		if !errors.As(err, &refused) {
			return p, err
		}
		without.add(refused)
	}
}

// dialer is the client's side of one handshake.
type dialer struct {
	context *Context
	opening *opening
	url     string
	without exclusions        // what does not work with this peer, and why
	shown   map[string][]byte // of channels, kept until the peer has tried them
}

func (d *dialer) dial(ctx context.Context, entry TransportEntry, addr string) (*Pipe, error) {
	defer d.opening.abandon()
	d.opening.phase = phaseDial
	first, err := d.opening.dial(entry.Transport, addr)
	if err != nil && ctx.Err() == nil {
		return nil, err // nobody listens there, or the address is none
	}
	var p *Pipe
	if err == nil {
		p, err = d.open(entry, first)
	}
	if err != nil {
		return nil, d.opening.explain(err)
	}
	return p, nil
}

func (d *dialer) open(entry TransportEntry, first transport.Conn) (*Pipe, error) {
	answer, err := d.exchange(first)
	if err != nil {
		return nil, err
	}
	spec, err := d.accept(answer, first)
	if err != nil {
		return nil, err
	}
	spec.remoteAddr = first.RemoteAddr()
	d.opening.phase = phaseTrial
	if err := d.probe(spec, answer.Probing(), first); err != nil {
		return nil, err
	}
	moved := answer.Transport != entry.Name
	if err := d.connect(spec, answer, moved, first); err != nil {
		return nil, err
	}
	p, err := d.context.build(d.opening, spec)
	if moved && err != nil && isRefusedBySystem(err) {
		err = d.unreached(answer.Transport, err)
	}
	return p, err
}

// exchange sends what this end offers and reads what the other end chose.
func (d *dialer) exchange(first transport.Conn) (*wire.BrochureAnswer, error) {
	r := d.context.registry
	d.opening.phase = phaseOffer
	hello := wire.SpontaneousConnection{ContextName: d.context.opts.Name}
	brochure := wire.Brochure{
		TransportDomainDescriptors: r.domains(),
		ChannelDeviceDescriptors:   r.offers(),
	}
	for name := range d.without.channels {
		delete(brochure.ChannelDeviceDescriptors, name)
	}
	for name := range d.without.transports {
		delete(brochure.TransportDomainDescriptors, name)
	}
	if !d.context.unmarked {
		d.shown = r.probeOffers(d.without.channels)
		brochure.Mark(d.context.marker())
		brochure.AddProbing(wire.Probing{
			Offers:  d.shown,
			Refused: r.reasons("channel", d.without.channels),
			Without: r.reasons("transport", d.without.transports),
		})
		brochure.AddWishes(d.context.wishes())
	}
	err := first.WriteFrames(transport.Frame{hello.Append(nil)}, transport.Frame{brochure.Append(nil)})
	if err != nil {
		return nil, classify(err)
	}
	d.opening.phase = phaseAnswer
	frame, err := readFrame(first, nil, d.context.limits.HandshakeBytes, nil)
	if err != nil {
		return nil, classify(err)
	}
	answer, err := wire.DecodeBrochureAnswer(frame, d.context.limits.wire())
	if err != nil {
		return nil, protocolError("brochure answer: %w", err)
	}
	if refusal, refused := answer.Refusal(); refused && !d.context.unmarked {
		return nil, d.context.refusedBy(refusal)
	}
	return answer, nil
}

// accept checks the other end's choice against what this end can do and wants.
func (d *dialer) accept(answer *wire.BrochureAnswer, first transport.Conn) (*spec, error) {
	r := d.context.registry
	entry, known := r.transport(answer.Transport)
	if !known {
		return nil, protocolError("answer chose transport %q, which this end did not offer", clip(answer.Transport))
	}
	if !entry.Transport.CanCommunicate(answer.TransportDomainDescriptor) {
		return nil, protocolError("answer chose transport %s with domain %q, which this end cannot reach",
			entry.Name, clip(answer.TransportDomainDescriptor))
	}
	marker, marked := answer.Marker()
	native, reason, err := d.context.acceptDialect(marker, marked && !d.context.unmarked, carriesSession(first))
	if err != nil {
		return nil, err
	}
	chosen, err := r.acceptChannels(answer, native)
	if err != nil {
		return nil, err
	}
	all, err := r.acceptRoutes(chosen, answer, native)
	if err == nil {
		err = d.mayUse(answer.Transport, all)
	}
	if err != nil {
		return nil, err
	}
	plan := r.newPlan(answer.Transport, all, d.refusals(answer, all))
	plan.noteDialect(native, reason)
	if err := d.context.opts.Policy.check(plan); err != nil {
		return nil, err
	}
	return &spec{
		role: channel.RoleConnect, peer: d.url, plan: plan, routes: all,
		native: native, features: marker.Features & d.context.marker().Features,
	}, nil
}

// refusals says why the transports and channels that this end has are not those
// that were chosen.
func (d *dialer) refusals(answer *wire.BrochureAnswer, all routes) []Refusal {
	const who = "the listening end"
	theirs := answer.Probing()
	var transports []Refusal
	for _, e := range d.context.registry.transports {
		if e.Name != answer.Transport {
			transports = append(transports, Refusal{"transport", e.Name, reasonNotChosen})
		}
	}
	transports = overrule(transports, who, theirs.Without)
	_, channels := d.context.registry.chooseChannels(answer.ChannelDeviceDescriptors, d.without.channels)
	channels = overrule(d.explainRefused(all, channels), who, theirs.Refused)
	return append(overrule(transports, "", d.without.transports), overrule(channels, "", d.without.channels)...)
}

// explainRefused keeps the refusals of channels that the other end did not
// choose. It lists in its answer only the channels it chose, so the reason for
// the others is known to it alone.
func (d *dialer) explainRefused(all routes, refused []Refusal) []Refusal {
	var out []Refusal
	for _, e := range d.context.registry.channels {
		if all.use(e.Name) {
			continue
		}
		refusal, found := find(refused, func(r Refusal) bool { return r.Name == e.Name })
		if !found || refusal.Reason == reasonNotOffered {
			refusal = Refusal{"channel", e.Name, reasonNotChosen}
		}
		out = append(out, refusal)
	}
	return out
}

// connect opens the connections that the answer asks for, in upstream's order. They
// are of another transport than first where the pipe has moved.
func (d *dialer) connect(s *spec, answer *wire.BrochureAnswer, moved bool, first transport.Conn) error {
	entry, _ := d.context.registry.transport(answer.Transport)
	addr := answer.Address
	if r, ok := entry.Transport.(transport.Reacher); ok && !moved {
		addr = r.Reach(addr, first)
	}
	join := func(id uint64) (transport.Conn, error) {
		conn, err := d.opening.dial(entry.Transport, addr)
		if err == nil {
			packet := wire.RequestedConnection{RegistrationID: id}
			err = conn.WriteFrames(transport.Frame{packet.Append(nil)})
		}
		switch {
		case err == nil:
			return conn, nil
		case moved:
			return nil, d.unreached(answer.Transport, err)
		default:
			return nil, fmt.Errorf("connection %d to %s://%s: %w", id, answer.Transport, clip(addr), err)
		}
	}
	s.desc = first
	if moved {
		d.opening.phase = phaseMove
		var err error
		if s.desc, err = d.move(s, answer, join); err != nil {
			sayAnew(first, err)
			return err
		}
		first.Close()
	}
	if s.native {
		return d.planBulk(s, answer, entry.Transport, addr)
	}
	d.opening.phase = phaseJoin
	var err error
	if s.reply, err = d.joinKey(answer, wire.ReplyConnection, join); err != nil {
		return err
	}
	if err := d.joinChannels(s, answer, join); err != nil {
		return err
	}
	if id, ok := answer.TransportRegistrationIDs[wire.ControlConnection]; ok && !d.context.unmarked {
		s.control, err = join(id)
	}
	return err
}

// move opens the connection that takes the place of the first one.
func (d *dialer) move(s *spec, answer *wire.BrochureAnswer, join func(uint64) (transport.Conn, error)) (transport.Conn, error) {
	desc, err := d.joinKey(answer, wire.DescriptorConnection, join)
	if err != nil || !s.native {
		return desc, err
	}
	// The listening end has the connection and the resources of the session.
	err = hearMoved(desc, answer.TransportRegistrationIDs[wire.DescriptorConnection])
	if err != nil && !errors.Is(err, ErrProtocol) {
		err = d.unreached(answer.Transport, err)
	}
	return desc, err
}

// planBulk prepares the dialling of the bulk connection and lists the channels.
func (d *dialer) planBulk(s *spec, answer *wire.BrochureAnswer, t transport.Transport, addr string) error {
	id, ok := answer.TransportRegistrationIDs[wire.BulkConnection]
	if !ok {
		return protocolError("answer lacks the registration id of the bulk connection")
	}
	s.dialBulk = func(ctx context.Context) (transport.Conn, error) { return joinBulk(ctx, t, addr, id) }
	for _, e := range d.context.registry.selected(s.routes) {
		s.channels = append(s.channels, channelSpec{entry: e})
	}
	return nil
}

func (d *dialer) joinKey(answer *wire.BrochureAnswer, key uint64, join func(uint64) (transport.Conn, error)) (transport.Conn, error) {
	id, ok := answer.TransportRegistrationIDs[key]
	if !ok {
		return nil, protocolError("answer lacks the registration id of connection %d", key)
	}
	return join(id)
}

func (d *dialer) joinChannels(s *spec, answer *wire.BrochureAnswer, join func(uint64) (transport.Conn, error)) error {
	for _, e := range d.context.registry.selected(s.routes) {
		ch := channelSpec{entry: e}
		for _, id := range answer.ChannelRegistrationIDs[e.Name] {
			conn, err := join(id)
			if err != nil {
				return err
			}
			ch.conns = append(ch.conns, conn)
		}
		s.channels = append(s.channels, ch)
	}
	return nil
}
