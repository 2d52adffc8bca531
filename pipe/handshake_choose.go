package pipe

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// The server chooses the path from what both ends offer and from the results of probing;
// the client checks that it can use the choice. The rule is TensorPipe's: the first common
// transport by priority, and for each pair of devices the first common channel by
// priority.

// Reasons for what this end has and the pipe does not use.
const (
	reasonNotOffered = "the peer does not offer it"
	reasonNotChosen  = "the server did not choose it" // where the server sent no reason
)

// Names of the ends, in reasons that the peer sent.
const (
	clientName = "the client"
	serverName = "the server"
)

// devicePair is a device of this end and one of the peer.
type devicePair struct{ local, remote device.Device }

func (p devicePair) String() string { return p.local.String() + " to " + p.remote.String() }

// deviceDescriptors are the descriptors that one end sends of its devices for one channel.
type deviceDescriptors = map[device.Device]string

// clientOffer is what a client offers: its brochure, decoded, and what clients of this library add
// to it.
type clientOffer struct {
	*wire.Brochure
	marker      wire.Marker
	marked      bool // the client is of this library
	probing     wire.Probing
	preferences wire.Preferences
	forConns    bool // it is for a session of Conns, and not for a pipe
}

// choose returns the server's choice of transport, channels and dialect for the client's offer, as
// the spec of the pipe without its connections. The error matches ErrNoTransport, ErrPolicy or
// ErrDialect if both ends share no transport, or no choice meets the policies and the Options of
// both.
func (h *serverHandshake) choose(offer clientOffer) (*spec, error) {
	c := h.listener.context
	r, excluded := c.orderedRegistry(offer.preferences), exclusions{}
	policy := c.policyFor(offer.forConns)
	if offer.marked { // a C++ client accepts only the result of its own priorities
		excluded = c.excludedBy(policy)
	}
	name, refused := h.chooseTransport(r, offer, excluded.transports)
	refusedTransports := replaceReasons(refused, clientName, offer.probing.Without)
	if name == "" {
		err := fmt.Errorf("%w: %v", ErrNoTransport, slices.Concat(refusedTransports, c.registry.refusals(CandidateTransport)))
		return nil, policy.Transports.wrapRequired(err)
	}
	r, unusable := c.probeChannels(r, name, offer, excluded.channels)
	chosen, more := r.chooseChannels(offer.ChannelDeviceDescriptors, unusable)
	refusedChannels := replaceReasons(more, clientName, offer.probing.Refused)
	native, reason, err := c.chooseDialect(offer.marker, offer.marked, noSessionOver(name, h.noSession[name]))
	if offer.forConns && !native {
		err = cmp.Or(err, errConnsNeedNative(reason))
	}
	all := r.routesOf(chosen, native, func(e ChannelEntry, pair devicePair) bool {
		_, out := unusable[e.Name]
		return !out && e.serves(pair, offer.ChannelDeviceDescriptors[e.Name])
	})
	plan := r.newPlan(name, all, slices.Concat(refusedTransports, all.unused(refusedChannels), r.peerDevices(offer.probing.Unusable, clientName)))
	if err := cmp.Or(policy.check(plan), err); err != nil {
		return nil, err
	}
	if offer.preferences.NeedsChannel && len(plan.Channels) == 0 { // the client would refuse the plan
		refused := slices.DeleteFunc(slices.Clone(plan.Refused), func(r Refusal) bool { return r.Kind != CandidateChannel })
		return nil, fmt.Errorf("%w: %s requires a channel, and there is none: %v", ErrPolicy, clientName, refused)
	}
	s := &spec{
		role: channel.RoleListen, plan: plan, routes: all, sizes: r.sizeClasses(all),
		native: native, peerOffers: offer.probing.Offers, peerDevices: offer.ChannelDeviceDescriptors,
	}
	if offer.forConns {
		s.maxConns = c.limits.MaxConns
	}
	if offer.marked {
		s.features = offer.marker.Features & c.marker().Features
	}
	for _, e := range r.used(all) {
		s.channels = append(s.channels, channelSpec{entry: e})
	}
	if s.native || s.features&wire.FeatureControl != 0 { // the answer has a marker
		s.probing = wire.Probing{
			Offers:    s.probeAnswers(),
			Refused:   r.reasonsByName(CandidateChannel, reasonMap(all.unused(more))),
			Unusable:  r.unusable(),
			Without:   r.reasonsByName(CandidateTransport, reasonMap(refused)),
			NoSession: h.noSession,
		}
	}
	plan.setDialect(s.native, reason)
	return s, nil
}

// choosePrepared returns the server's choice for the client's offer, as choose does, and prepares
// first, the client's first connection, for it. It sets h.noSession to the transports without
// sessions that the client has named and, if first carries no session, that of first. If the pipe
// is to use the native dialect over first, choosePrepared also acquires the memory for the session;
// if first turns out to carry no session, it chooses again. The error is that of choose, or of
// acquiring the memory; after an error the spec must not be used.
func (h *serverHandshake) choosePrepared(offer clientOffer, first transport.Conn) (*spec, error) {
	h.noSession = map[string]string{}
	for name, reason := range offer.probing.NoSession {
		h.noSession[name] = clientName + ": " + sanitizeReason(reason)
	}
	if !canMultiplex(first) {
		h.noSession[h.transport] = errNoSession.Error()
	}
	s, err := h.choose(offer)
	if err != nil || !s.native || s.plan.Transport != h.transport {
		return s, err
	}
	err = h.listener.context.prepareSession(s, first)
	if !errors.Is(err, transport.ErrNotSupported) {
		return s, err
	}
	h.noSession[h.transport] = err.Error()
	return h.choose(offer)
}

// chooseTransport returns the name of the transport for the client's offer, or "" if there is none,
// and a refusal with the reason for each other transport of r. The map except has the excluded
// transports with the reasons. If the client is of this library and one of the ends requires the
// native dialect, as a client does that opens a session of Conns, transports without sessions are
// excluded too, as long as another one is left.
func (h *serverHandshake) chooseTransport(r *registry, offer clientOffer, except map[string]string) (string, []Refusal) {
	listensOn := func(name string) bool { return h.listener.endpoints[name] != nil }
	required := h.listener.context.opts.Dialect == DialectNative || offer.marker.MinVersion >= wire.VersionNative || offer.forConns
	if offer.marked && required {
		excluded := map[string]string{}
		for name, reason := range h.noSession {
			excluded[name] = fmt.Sprintf("%s is required, and %s", DialectNative, reason)
		}
		maps.Copy(excluded, except)
		if name, refused := r.chooseTransport(offer.TransportDomainDescriptors, listensOn, excluded); name != "" {
			return name, refused
		}
	}
	return r.chooseTransport(offer.TransportDomainDescriptors, listensOn, except)
}

// chooseTransport returns the name of the first transport, in the order of r, that both ends can
// use, or "" if there is none. It also returns a refusal with the reason for each other transport
// of r. The map remote has the client's domain descriptors, which name the set of hosts that a
// transport reaches, by transport name. The function usable reports whether this end listens on a
// transport. The map except has the excluded transports with the reasons.
func (r *registry) chooseTransport(
	remote map[string]string, usable func(name string) bool, except map[string]string,
) (chosen string, refused []Refusal) {
	for _, e := range r.transports {
		reason := ""
		descriptor, offered := remote[e.Name]
		_, excluded := except[e.Name]
		switch {
		case excluded:
			reason = except[e.Name]
		case !usable(e.Name):
			reason = "this end does not listen on it"
		case !offered:
			reason = reasonNotOffered
		case !e.Transport.CanCommunicate(descriptor):
			reason = fmt.Sprintf("the peer is in another domain: %q, not %q", sanitize(descriptor), e.Transport.DomainDescriptor())
		case chosen != "":
			reason = chosen + " goes before it"
		default:
			chosen = e.Name
			continue
		}
		refused = append(refused, Refusal{Kind: CandidateTransport, Name: e.Name, Reason: reason})
	}
	return chosen, refused
}

// chooseChannels returns, for each pair of devices, the name of the first channel in the order of r
// that both ends have and that can serve the pair. It also returns a refusal with the reason for
// each channel that got no pair. The map remote has the peer's device descriptors by channel name,
// and the map except has the excluded channels with the reasons.
func (r *registry) chooseChannels(
	remote map[string]deviceDescriptors, except map[string]string,
) (map[devicePair]string, []Refusal) {
	chosen := map[devicePair]string{}
	var refused []Refusal
	for _, e := range r.channels {
		theirs, offered := remote[e.Name]
		if !offered {
			refused = append(refused, Refusal{Kind: CandidateChannel, Name: e.Name, Reason: reasonNotOffered})
			continue
		}
		if reason, tried := except[e.Name]; tried {
			refused = append(refused, Refusal{Kind: CandidateChannel, Name: e.Name, Reason: reason})
			continue
		}
		if reason := e.claimPairs(theirs, chosen); reason != "" {
			refused = append(refused, Refusal{Kind: CandidateChannel, Name: e.Name, Reason: reason})
		}
	}
	return chosen, refused
}

// claimPairs adds to the map chosen, with the name of e, every pair of a local and a remote device
// that is not in the map and that e can serve. theirs has the peer's device descriptors for e. It
// returns "" if it has added a pair, and otherwise the reason why it has not.
func (e ChannelEntry) claimPairs(theirs deviceDescriptors, chosen map[devicePair]string) (reason string) {
	ours := e.descriptors()
	reason = "one of the ends has no device for it"
	claimed := false
	var pairs []devicePair
	for local := range ours {
		for remote := range theirs {
			pairs = append(pairs, devicePair{local, remote})
		}
	}
	slices.SortFunc(pairs, comparePairs)
	for _, pair := range pairs {
		holder, taken := chosen[pair]
		switch {
		case !e.Factory.CanCommunicate(ours[pair.local], theirs[pair.remote]):
			reason = fmt.Sprintf("%s: %s", pair, e.obstacle(ours[pair.local], theirs[pair.remote]))
		case taken:
			reason = fmt.Sprintf("%s: %s goes before it", pair, holder)
		default:
			chosen[pair] = e.Name
			claimed = true
		}
	}
	if claimed {
		return ""
	}
	return reason
}

// acceptChannels checks, at the client, the channels in the server's answer, and returns their
// names by pair of devices. native is true if the server chose the native dialect. The error
// matches ErrProtocol if a channel was not offered, cannot serve its pair or has a wrong number of
// connections. The order of priorities is not checked, because it may differ between the ends.
func (r *registry) acceptChannels(answer *wire.BrochureAnswer, native bool) (map[devicePair]string, error) {
	chosen := map[devicePair]string{}
	for pair, name := range answer.ChannelForDevicePair {
		local, remote := pair.Client, pair.Server
		e, known := r.channel(name)
		if !known {
			return nil, protocolError("answer chose channel %q for %s, which this end did not offer", sanitize(name), local)
		}
		if !e.serves(devicePair{local, remote}, answer.ChannelDeviceDescriptors[name]) {
			return nil, protocolError("answer chose channel %q for %s to %s, which it cannot serve", name, local, remote)
		}
		want := 0 // streams of the session need no ids
		if !native {
			want = e.Factory.Connections(false)
		}
		if got := len(answer.ChannelRegistrationIDs[name]); got != want {
			return nil, protocolError("answer gives %d connections for channel %q, which needs %d", got, name, want)
		}
		chosen[devicePair{local, remote}] = name
	}
	return chosen, nil
}

// channelDescriptors returns the device descriptors of this end's usable channels, by channel name,
// for the client's offer. The caller may change the outer map; the inner ones belong to the
// channels.
func (r *registry) channelDescriptors() map[string]deviceDescriptors {
	out := make(map[string]deviceDescriptors, len(r.channels))
	for _, e := range r.channels {
		if all := e.descriptors(); len(all) > 0 {
			out[e.Name] = all
		}
	}
	return out
}

// transportDomains returns the domain descriptors of this end's usable transports, by transport
// name, for the client's offer. The map is new, so the caller may change it.
func (r *registry) transportDomains() map[string]string {
	out := make(map[string]string, len(r.transports))
	for _, e := range r.transports {
		out[e.Name] = e.Transport.DomainDescriptor()
	}
	return out
}

// newPlan returns a new plan in which the pipe uses transport and the channels that chosen lists.
// The rejected candidates of the plan are refused, followed by r's devices that do not work and by
// r.refused, in a new slice. The dialect of the plan is the compatible one; setDialect may change that later.
func (r *registry) newPlan(transport string, chosen routes, refused []Refusal) *Plan {
	channels := []PlannedChannel{} // and not null in JSON
	for _, pair := range slices.SortedFunc(maps.Keys(chosen), comparePairs) {
		below := 0
		for _, c := range chosen[pair] {
			channels = append(channels, PlannedChannel{Local: pair.local, Remote: pair.remote, Channel: c.channel, Below: below})
			below = c.from
		}
	}
	return &Plan{
		Dialect:   DialectCompatible,
		Transport: transport,
		Channels:  channels,
		Refused:   slices.Concat([]Refusal{}, refused, r.unusableDevices(), r.refused),
	}
}

// sanitize returns s, which the peer sent, in a form for an error or a log: at most 80 bytes, with
// "..." at the end if it is cut off, and with "?" for unprintable characters.
func sanitize(s string) string { return sanitizeTo(s, 80) }

// sanitizeReason returns s, a reason that the peer sent, in a form for an error or a log: at most
// 256 bytes, with "..." at the end if it is cut off, and with "?" for unprintable characters.
func sanitizeReason(s string) string { return sanitizeTo(s, 256) }

// sanitizeTo returns s with "?" in place of unprintable characters and of bytes that are not valid
// UTF-8. If s has more than n bytes, sanitizeTo keeps the first n-3 of them and adds "...". The
// result has at most n bytes.
func sanitizeTo(s string, n int) string {
	if len(s) > n {
		s = s[:n-3] + "..."
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(s, "?"))
}
