package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Dial opens a pipe to url, as in "uv://host:7000", and returns the pipe when this end may write.
// The caller must close it. ctx and HandshakeTimeout bound only the call, not the life of the pipe.
// On failure Dial returns nil and an [*Error]. It matches ErrURL if url is invalid or its transport
// cannot be used, matches ErrClosed if the context c was closed, and wraps the error of the
// transport if no connection to url can be opened. Any other error matches ErrHandshake and the
// cause: for example ErrHandshakeTimeout, ErrPolicy, ErrNoTransport, ErrDialect, ErrProtocol,
// ErrPeerClosed, ErrPeerLost or the cause of ctx.
func (c *Context) Dial(ctx context.Context, url string) (*Pipe, error) {
	var p *Pipe
	err := c.dial(ctx, url, false, func(conns *handshakeConns, s *spec) (err error) {
		p, err = c.build(conns, s)
		return err
	})
	if err != nil {
		c.counters.handshakesFailed.Add(1)
		return nil, &Error{Op: "dial", Peer: url, Err: err}
	}
	c.counters.handshakesDone.Add(1)
	return p, nil
}

// dial performs handshakes with the listener at url until one succeeds, and then returns nil. A
// handshake is for a pipe, or for a session of Conns if forConns is set; it ends with a call of
// build, which builds that from the connections and the spec. After a handshake that fails because
// a candidate does not work, dial repeats the handshake without that candidate. Any other error
// ends dial, which returns it unchanged. ctx, HandshakeTimeout and the end of c bound all
// handshakes together.
func (c *Context) dial(ctx context.Context, url string, forConns bool, build func(*handshakeConns, *spec) error) error {
	if err := c.startWork(); err != nil {
		return err
	}
	defer c.work.Done()
	entry, addr, err := c.splitURL(url)
	if err != nil {
		return err
	}
	ctx, cancel := c.handshakeContext(ctx)
	defer cancel()
	policy := c.policyFor(forConns)
	excluded := c.excludedBy(policy)
	for {
		if err := c.checkOffer(policy, excluded); err != nil {
			return fmt.Errorf("%w: %w", ErrHandshake, err)
		}
		h := &clientHandshake{
			context: c, conns: newHandshakeConns(ctx), url: url, addr: addr, excluded: excluded,
			policy: policy, registry: c.registry.without(excluded.devices), forConns: forConns, build: build,
		}
		err := h.dial(ctx, entry)
		var failed *failedCandidate
		if !errors.As(err, &failed) {
			return err
		}
		excluded.add(failed)
	}
}

// clientHandshake is the client's part of one handshake, from the first connection to the open
// pipe or session.
type clientHandshake struct {
	context     *Context
	conns       *handshakeConns
	url, addr   string // that the application dials; addr has no scheme
	excluded    exclusions
	policy      Policy
	registry    *registry         // that of the context, without excluded devices
	probeOffers map[string][]byte // sent to the server, by channel
	forConns    bool              // it opens a session of Conns, and no pipe
	build       func(*handshakeConns, *spec) error
}

// dial performs one handshake: it opens the first connection, to h.addr, and then the pipe or session.
// It returns nil on success. If the first connection cannot be opened and ctx has not ended, the
// error is that of the transport. Any other error matches ErrHandshake; if a candidate did not work
// and ctx has not ended, a failedCandidate is in its chain. On failure all connections of the
// handshake are closed; on success the pipe or session owns them. entry is the transport of h.addr.
func (h *clientHandshake) dial(ctx context.Context, entry TransportEntry) error {
	defer h.conns.close()
	h.conns.phase = phaseDial
	first, err := h.conns.dial(entry.Transport, h.addr)
	if err != nil && ctx.Err() == nil {
		return err // no server at this address; not an error of the handshake
	}
	if err == nil {
		err = h.open(entry, first)
	}
	if err != nil {
		return h.conns.wrapError(err)
	}
	return nil
}

// open performs the handshake over first, a connection that the caller has opened with the
// transport of entry, opens the other connections and builds the pipe or session. If a candidate
// does not work, a failedCandidate is in the error chain. On failure the caller closes h.conns.
func (h *clientHandshake) open(entry TransportEntry, first transport.Conn) error {
	if !canMultiplex(first) {
		h.excluded.noSession[entry.Name] = errNoSession.Error()
	}
	answer, err := h.exchangeOffers(first)
	if err != nil {
		return err
	}
	spec, err := h.checkAnswer(answer)
	if err != nil {
		return err
	}
	spec.remoteAddr = first.RemoteAddr()
	h.conns.phase = phaseProbe
	if err := h.probeChosen(spec, answer.Probing(), first); err != nil {
		return err
	}
	moved := answer.Transport != entry.Name
	if err := h.openConns(spec, answer, moved, first); err != nil {
		return err
	}
	err = h.build(h.conns, spec)
	var errno syscall.Errno
	var ofChannel *channel.Error
	if moved && errors.As(err, &errno) && !errors.As(err, &ofChannel) {
		err = h.transportFailed(answer.Transport, err)
	}
	return err
}

// exchangeOffers sends the client's offer (TensorPipe's brochure) over first, the first connection
// of the handshake, waits for the server's answer and returns it. If the server rejects the pipe, a
// *rejection with the server's reason is in the error chain. The error matches ErrPolicy,
// ErrNoTransport or ErrDialect if the server gave that as the reason, and also ErrPolicy if the
// ends share no transport although the policy of this end requires one. If the answer is invalid
// the error matches ErrProtocol. Otherwise it is that of the connection.
func (h *clientHandshake) exchangeOffers(first transport.Conn) (*wire.BrochureAnswer, error) {
	r := h.registry
	h.conns.phase = phaseOffer
	hello := wire.SpontaneousConnection{ContextName: h.context.opts.Name}
	brochure := wire.Brochure{
		TransportDomainDescriptors: r.transportDomains(),
		ChannelDeviceDescriptors:   map[string]deviceDescriptors{},
	}
	if !h.forConns { // a session of Conns has no channels
		brochure.ChannelDeviceDescriptors = r.channelDescriptors()
	}
	for name := range h.excluded.channels {
		delete(brochure.ChannelDeviceDescriptors, name)
	}
	for name := range h.excluded.transports {
		delete(brochure.TransportDomainDescriptors, name)
	}
	if !h.context.hideMarker {
		if !h.forConns {
			h.probeOffers = r.probeOffers(h.excluded.channels)
		}
		brochure.Mark(h.context.marker())
		brochure.AddPreferences(h.policy.preferences())
		if h.forConns {
			brochure.RequestConns()
		}
		brochure.AddProbing(wire.Probing{
			Offers:    h.probeOffers,
			Refused:   r.reasonsByName(CandidateChannel, h.excluded.channels),
			Unusable:  r.unusable(),
			Without:   r.reasonsByName(CandidateTransport, h.excluded.transports),
			NoSession: h.excluded.noSession,
		})
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
		what := "pipe"
		if h.forConns {
			what = "Conn"
		}
		err := &rejection{what: what, kind: refusalKinds[refusal.Kind], text: sanitizeTo(refusal.Text, wire.MaxRefusal)}
		if refusal.Kind == wire.RefusedByTransport {
			return nil, h.policy.Transports.wrapRequired(err)
		}
		return nil, err
	}
	return answer, nil
}

// checkAnswer checks the server's choice in answer and returns the spec of the pipe without its
// connections. The error matches ErrProtocol if this end did not offer the choice or cannot use it,
// ErrPolicy if the policy of this end does not allow it, and ErrDialect if this end requires the
// native dialect and the server did not choose it.
func (h *clientHandshake) checkAnswer(answer *wire.BrochureAnswer) (*spec, error) {
	r := h.registry
	entry, known := r.transport(answer.Transport)
	if !known {
		return nil, protocolError("answer chose transport %q, which this end did not offer", sanitize(answer.Transport))
	}
	if !entry.Transport.CanCommunicate(answer.TransportDomainDescriptor) {
		return nil, protocolError("answer chose transport %s with domain %q, which this end cannot reach",
			entry.Name, sanitize(answer.TransportDomainDescriptor))
	}
	marker, marked := answer.Marker()
	maxConns := answer.Conns()
	if h.forConns && (maxConns == 0 || h.context.hideMarker) {
		return nil, fmt.Errorf("%w: the peer opens pipes only, it is a C++ process or an older version of this library", ErrDialect)
	}
	noSession := h.excluded.noSession[entry.Name]
	if theirs := answer.Probing().NoSession[entry.Name]; noSession == "" && theirs != "" {
		noSession = serverName + ": " + sanitizeReason(theirs)
	}
	native, reason, err := h.context.acceptDialect(marker, marked && !h.context.hideMarker, noSessionOver(entry.Name, noSession))
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
	if err := h.policy.check(plan); err != nil {
		return nil, err
	}
	if !h.forConns {
		maxConns = 0
	} else if !native {
		return nil, errConnsNeedNative(reason)
	}
	return &spec{
		maxConns: maxConns,
		role:     channel.RoleConnect, peer: h.url, plan: plan, routes: all,
		native: native, features: marker.Features & h.context.marker().Features,
		peerDevices: answer.ChannelDeviceDescriptors,
	}, nil
}

// unchosen returns a refusal for each transport and channel of this end that the server did not
// choose. The choice is in answer and in the parameter all, the chosen routes. If this end has
// excluded a candidate, the reason is why. Otherwise it is the reason that the server sent. If the
// server sent none, the reason is what this end can infer from the device descriptors in answer,
// which has them for chosen channels only. The devices of the server that do not work follow.
func (h *clientHandshake) unchosen(answer *wire.BrochureAnswer, all routes) []Refusal {
	r, theirs := h.registry, answer.Probing()
	var transports, channels []Refusal
	for _, e := range r.transports {
		if e.Name != answer.Transport {
			transports = append(transports, Refusal{Kind: CandidateTransport, Name: e.Name, Reason: reasonNotChosen})
		}
	}
	_, found := r.chooseChannels(answer.ChannelDeviceDescriptors, h.excluded.channels)
	for _, e := range r.channels {
		if all.uses(e.Name) {
			continue
		}
		refusal, ok := find(found, func(r Refusal) bool { return r.Name == e.Name })
		if !ok || refusal.Reason == reasonNotOffered {
			refusal = Refusal{Kind: CandidateChannel, Name: e.Name, Reason: reasonNotChosen}
		}
		channels = append(channels, refusal)
	}
	transports = replaceReasons(transports, serverName, theirs.Without)
	channels = replaceReasons(channels, serverName, theirs.Refused)
	return slices.Concat(replaceReasons(transports, "", h.excluded.transports),
		replaceReasons(channels, "", h.excluded.channels), r.peerDevices(theirs.Unusable, serverName))
}

// openConns opens the connections that answer asks for, in TensorPipe's order, and stores them in
// s. h.conns owns them. If moved is true, the server chose another transport than that of first,
// the first connection of the handshake: openConns replaces first by a new connection and closes
// it. A failure of the chosen transport, or a connection that cannot carry the chosen dialect, is
// then a failedCandidate; as long as the old connection is open, openConns reports the failure to
// the server. In the native dialect it opens no further connections, and only prepares s for
// dialling the bulk connection later.
func (h *clientHandshake) openConns(s *spec, answer *wire.BrochureAnswer, moved bool, first transport.Conn) error {
	entry, _ := h.registry.transport(answer.Transport)
	addr := answer.Address
	if t, ok := entry.Transport.(transport.AddressTranslator); ok && !moved {
		addr = t.Reach(addr, first)
	}
	join := func(id uint64) (transport.Conn, error) {
		conn, err := h.conns.dial(entry.Transport, addr)
		if err == nil && s.native && !canMultiplex(conn) {
			return nil, &failedCandidate{CandidateDialect, entry.Name, errNoSession}
		}
		if err == nil {
			err = sendRequested(conn, id)
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
		return h.prepareBulk(s, answer, entry.Transport, addr, moved)
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

// openChannelConns opens the connections of all channels in the compatible dialect and stores them
// in s. It calls join with each registration id in answer, to open one connection. It stops at the
// first failure and returns the error of join.
func (h *clientHandshake) openChannelConns(s *spec, answer *wire.BrochureAnswer, join func(uint64) (transport.Conn, error)) error {
	for _, e := range h.registry.used(s.routes) {
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

// prepareBulk stores in s the channels of a native pipe, and a function that dials the bulk
// connection over t when the pipe needs it. It opens nothing itself. A session of Conns has neither.
// The error matches ErrProtocol if answer has no registration id for that connection.
//
// The function dials the address that the application has dialled, unless moved is true because
// that is of another transport: it may be a forwarded port. If that fails, as with a load balancer
// that leads to another server, it dials addr, which the server advertises.
func (h *clientHandshake) prepareBulk(
	s *spec, answer *wire.BrochureAnswer, t transport.Transport, addr string, moved bool,
) error {
	if s.maxConns > 0 {
		return nil
	}
	id, ok := answer.TransportRegistrationIDs[wire.BulkConnection]
	if !ok {
		return protocolError("answer lacks the registration id of the bulk connection")
	}
	addrs := []string{addr}
	if !moved && addr != h.addr {
		addrs = []string{h.addr, addr}
	}
	s.dialBulk = func(ctx context.Context) (conn transport.Conn, err error) {
		for _, addr := range addrs {
			if conn, err = connectBulk(ctx, t, addr, id); err == nil || ctx.Err() != nil {
				break
			}
		}
		return conn, err
	}
	for _, e := range h.registry.used(s.routes) {
		s.channels = append(s.channels, channelSpec{entry: e})
	}
	return nil
}
