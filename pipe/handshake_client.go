package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Dial opens a pipe to url, as in "uv://host:7000". It returns when this end may write. ctx and
// HandshakeTimeout bound the call, not the life of the pipe. The error is an [*Error]; it matches
// ErrURL, ErrHandshakeTimeout, ErrPolicy, ErrNoTransport, ErrDialect, ErrProtocol, ErrPeerLost, the
// cause of ctx, the transport's own error, or ErrClosed once the context is closed.
func (c *Context) Dial(ctx context.Context, url string) (*Pipe, error) {
	p, err := c.dial(ctx, url)
	if err != nil {
		c.counters.handshakesFailed.Add(1)
		return nil, &Error{Op: "dial", Peer: url, Err: err}
	}
	c.counters.handshakesDone.Add(1)
	return p, nil
}

// dial performs handshakes with the listener at url until one succeeds, or fails for another reason
// than a failed candidate. After each failed candidate it repeats the handshake without that
// candidate.
func (c *Context) dial(ctx context.Context, url string) (*Pipe, error) {
	if err := c.startWork(); err != nil {
		return nil, err
	}
	defer c.work.Done()
	entry, addr, err := c.splitURL(url)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.handshakeContext(ctx)
	defer cancel()
	excluded := c.excludedByPolicy()
	for {
		if err := c.checkOffer(excluded); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrHandshake, err)
		}
		h := &clientHandshake{context: c, conns: newHandshakeConns(ctx), url: url, excluded: excluded}
		p, err := h.dial(ctx, entry, addr)
		var failed *failedCandidate
		if !errors.As(err, &failed) {
			return p, err
		}
		if failed.kind == CandidateChannel {
			excluded.channels[failed.name] = failed.err.Error()
		} else {
			excluded.transports[failed.name] = failed.err.Error()
		}
	}
}

// clientHandshake is the client's part of one handshake, from the first connection to the open
// pipe.
type clientHandshake struct {
	context     *Context
	conns       *handshakeConns
	url         string
	excluded    exclusions
	probeOffers map[string][]byte // sent to the server, by channel
}

// dial opens the first connection, to addr, and then the pipe. If the first connection cannot be opened
// and ctx has not ended, the error is that of the transport. Otherwise it matches ErrHandshake. If a
// candidate failed, a failedCandidate is in the error chain. The connections are closed unless the pipe
// owns them.
func (h *clientHandshake) dial(ctx context.Context, entry TransportEntry, addr string) (*Pipe, error) {
	defer h.conns.close()
	h.conns.phase = phaseDial
	first, err := h.conns.dial(entry.Transport, addr)
	if err != nil && ctx.Err() == nil {
		return nil, err // no server at this address; not an error of the handshake
	}
	var p *Pipe
	if err == nil {
		p, err = h.open(entry, first)
	}
	if err != nil {
		return nil, h.conns.wrapError(err)
	}
	return p, nil
}

// open performs the handshake on first, opens the other connections and builds the pipe. If a
// candidate fails, a failedCandidate is in the error chain.
func (h *clientHandshake) open(entry TransportEntry, first transport.Conn) (*Pipe, error) {
	answer, err := h.exchangeOffers(first)
	if err != nil {
		return nil, err
	}
	spec, err := h.checkAnswer(answer, first)
	if err != nil {
		return nil, err
	}
	spec.remoteAddr = first.RemoteAddr()
	h.conns.phase = phaseProbe
	if err := h.probeChosen(spec, answer.Probing(), first); err != nil {
		return nil, err
	}
	moved := answer.Transport != entry.Name
	if err := h.openConns(spec, answer, moved, first); err != nil {
		return nil, err
	}
	p, err := h.context.build(h.conns, spec)
	var errno syscall.Errno
	var ofChannel *channel.Error
	if moved && errors.As(err, &errno) && !errors.As(err, &ofChannel) {
		err = h.transportFailed(answer.Transport, err)
	}
	return p, err
}

// exchangeOffers sends the brochure on first, waits for the server's answer and returns it. If the
// server rejects the pipe the error is a rejection, which also matches ErrPolicy if there is no common
// transport and the policy requires one. If the answer is invalid the error matches ErrProtocol.
// Otherwise it is that of the connection.
func (h *clientHandshake) exchangeOffers(first transport.Conn) (*wire.BrochureAnswer, error) {
	r := h.context.registry
	h.conns.phase = phaseOffer
	hello := wire.SpontaneousConnection{ContextName: h.context.opts.Name}
	brochure := wire.Brochure{
		TransportDomainDescriptors: r.transportDomains(),
		ChannelDeviceDescriptors:   r.channelDescriptors(),
	}
	for name := range h.excluded.channels {
		delete(brochure.ChannelDeviceDescriptors, name)
	}
	for name := range h.excluded.transports {
		delete(brochure.TransportDomainDescriptors, name)
	}
	if !h.context.hideMarker {
		h.probeOffers = r.probeOffers(h.excluded.channels)
		brochure.Mark(h.context.marker())
		brochure.AddProbing(wire.Probing{
			Offers:  h.probeOffers,
			Refused: r.reasonsByName(CandidateChannel, h.excluded.channels),
			Without: r.reasonsByName(CandidateTransport, h.excluded.transports),
		})
		brochure.AddPreferences(h.context.preferences())
	}
	err := first.WriteFrames(transport.Frame{hello.Append(nil)}, transport.Frame{brochure.Append(nil)})
	if err != nil {
		return nil, classify(err)
	}
	h.conns.phase = phaseAnswer
	frame, err := readFrame(first, nil, h.context.limits.HandshakeBytes, nil)
	if err != nil {
		return nil, classify(err)
	}
	answer, err := wire.DecodeBrochureAnswer(frame, h.context.limits.wire())
	if err != nil {
		return nil, protocolError("brochure answer: %w", err)
	}
	if refusal, rejected := answer.Refusal(); rejected && !h.context.hideMarker {
		err := &rejection{kind: refusalKinds[refusal.Kind], text: sanitizeTo(refusal.Text, wire.MaxRefusal)}
		if refusal.Kind == wire.RefusedByTransport {
			return nil, h.context.opts.Policy.Transports.wrapRequired(err)
		}
		return nil, err
	}
	return answer, nil
}

// checkAnswer checks the server's choice and returns the spec of the pipe without its connections.
// Errors match ErrProtocol if this end cannot use the choice, ErrPolicy if its policy does not
// allow it, or ErrDialect.
func (h *clientHandshake) checkAnswer(answer *wire.BrochureAnswer, first transport.Conn) (*spec, error) {
	r := h.context.registry
	entry, known := r.transport(answer.Transport)
	if !known {
		return nil, protocolError("answer chose transport %q, which this end did not offer", sanitize(answer.Transport))
	}
	if !entry.Transport.CanCommunicate(answer.TransportDomainDescriptor) {
		return nil, protocolError("answer chose transport %s with domain %q, which this end cannot reach",
			entry.Name, sanitize(answer.TransportDomainDescriptor))
	}
	marker, marked := answer.Marker()
	native, reason, err := h.context.acceptDialect(marker, marked && !h.context.hideMarker, canMultiplex(first))
	if err != nil {
		return nil, err
	}
	chosen, err := r.acceptChannels(answer, native)
	if err != nil {
		return nil, err
	}
	all, err := r.acceptRoutes(chosen, answer, native)
	if err == nil {
		_, excluded := h.excluded.transports[entry.Name]
		if excluded {
			err = protocolError("answer chose transport %q, which this end did not offer", entry.Name)
		}
		for name := range h.excluded.channels {
			if all.uses(name) {
				err = cmp.Or(err, protocolError("answer chose channel %q, which this end did not offer", name))
			}
		}
	}
	if err != nil {
		return nil, err
	}
	plan := r.newPlan(answer.Transport, all, h.unchosen(answer, all))
	plan.setDialect(native, reason)
	if err := h.context.opts.Policy.check(plan); err != nil {
		return nil, err
	}
	return &spec{
		role: channel.RoleConnect, peer: h.url, plan: plan, routes: all,
		native: native, features: marker.Features & h.context.marker().Features,
	}, nil
}

// unchosen returns a refusal for each transport and channel of this end that the server did not choose.
// The reason is that of this end if this end excluded the candidate, or else the one that the server
// sent. If there is neither, it is what this end can infer: the answer has the device descriptors of
// chosen channels only.
func (h *clientHandshake) unchosen(answer *wire.BrochureAnswer, all routes) []Refusal {
	r, theirs := h.context.registry, answer.Probing()
	var transports, channels []Refusal
	for _, e := range r.transports {
		if e.Name != answer.Transport {
			transports = append(transports, Refusal{CandidateTransport, e.Name, reasonNotChosen})
		}
	}
	_, found := r.chooseChannels(answer.ChannelDeviceDescriptors, h.excluded.channels)
	for _, e := range r.channels {
		if all.uses(e.Name) {
			continue
		}
		refusal, ok := find(found, func(r Refusal) bool { return r.Name == e.Name })
		if !ok || refusal.Reason == reasonNotOffered {
			refusal = Refusal{CandidateChannel, e.Name, reasonNotChosen}
		}
		channels = append(channels, refusal)
	}
	transports = replaceReasons(transports, serverName, theirs.Without)
	channels = replaceReasons(channels, serverName, theirs.Refused)
	return append(replaceReasons(transports, "", h.excluded.transports), replaceReasons(channels, "", h.excluded.channels)...)
}

// openConns opens the connections that the answer asks for, in TensorPipe's order, and enters them
// in s. If moved is set, first is replaced by a connection over the chosen transport, and closed; a
// failure of that transport is a failedCandidate, and is reported to the server. In the native
// dialect it only prepares the bulk connection.
func (h *clientHandshake) openConns(s *spec, answer *wire.BrochureAnswer, moved bool, first transport.Conn) error {
	entry, _ := h.context.registry.transport(answer.Transport)
	addr := answer.Address
	if t, ok := entry.Transport.(transport.AddressTranslator); ok && !moved {
		addr = t.Reach(addr, first)
	}
	join := func(id uint64) (transport.Conn, error) {
		conn, err := h.conns.dial(entry.Transport, addr)
		if err == nil {
			packet := wire.RequestedConnection{RegistrationID: id}
			err = conn.WriteFrames(transport.Frame{packet.Append(nil)})
		}
		switch {
		case err == nil:
			return conn, nil
		case moved:
			return nil, h.transportFailed(answer.Transport, err)
		default:
			return nil, fmt.Errorf("connection %d to %s://%s: %w", id, answer.Transport, sanitize(addr), err)
		}
	}
	joinKey := func(key uint64) (transport.Conn, error) {
		id, ok := answer.TransportRegistrationIDs[key]
		if !ok {
			return nil, protocolError("answer lacks the registration id of connection %d", key)
		}
		return join(id)
	}
	s.desc = first
	if moved {
		h.conns.phase = phaseMove
		var err error
		if s.desc, err = joinKey(wire.DescriptorConnection); err == nil && s.native {
			// Other errors than violations of the protocol count as a failed transport.
			err = readMoveAnswer(s.desc, answer.TransportRegistrationIDs[wire.DescriptorConnection])
			if err != nil && !errors.Is(err, ErrProtocol) {
				err = h.transportFailed(answer.Transport, err)
			}
		}
		if err != nil {
			sendRetry(first, err)
			return err
		}
		first.Close()
	}
	if s.native {
		return h.prepareBulk(s, answer, entry.Transport, addr)
	}
	h.conns.phase = phaseJoin
	var err error
	if s.reply, err = joinKey(wire.ReplyConnection); err == nil {
		err = h.openChannelConns(s, answer, join)
	}
	if id, ok := answer.TransportRegistrationIDs[wire.ControlConnection]; ok && err == nil && !h.context.hideMarker {
		s.control, err = join(id)
	}
	return err
}

// openChannelConns opens the connections of the channels in the compatible dialect and enters them
// in s. join opens one, by its registration id.
func (h *clientHandshake) openChannelConns(s *spec, answer *wire.BrochureAnswer, join func(uint64) (transport.Conn, error)) error {
	for _, e := range h.context.registry.used(s.routes) {
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

// prepareBulk enters in s the channels of a native pipe, and the function that dials the bulk
// connection over t to addr when the pipe needs it. The error matches ErrProtocol if the answer has
// no id for that connection.
func (h *clientHandshake) prepareBulk(s *spec, answer *wire.BrochureAnswer, t transport.Transport, addr string) error {
	id, ok := answer.TransportRegistrationIDs[wire.BulkConnection]
	if !ok {
		return protocolError("answer lacks the registration id of the bulk connection")
	}
	s.dialBulk = func(ctx context.Context) (transport.Conn, error) { return connectBulk(ctx, t, addr, id) }
	for _, e := range h.context.registry.used(s.routes) {
		s.channels = append(s.channels, channelSpec{entry: e})
	}
	return nil
}
