package pipe

import (
	"cmp"
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
}

// choose returns the server's choice for an offer, as the spec of the pipe without its connections.
// The error matches ErrNoTransport, ErrPolicy or ErrDialect if no path is left that both ends can
// use and their policies and options allow.
func (h *serverHandshake) choose(offer clientOffer, first transport.Conn) (*spec, error) {
	c := h.listener.context
	r, excluded := c.orderedRegistry(offer.preferences), exclusions{}
	if offer.marked { // a C++ client accepts only the result of its own priorities
		excluded = c.excludedByPolicy()
	}
	listensOn := func(name string) bool { return h.listener.endpoints[name] != nil }
	name, refused := r.chooseTransport(offer.TransportDomainDescriptors, listensOn, excluded.transports)
	refusedTransports := replaceReasons(refused, clientName, offer.probing.Without)
	if name == "" {
		err := fmt.Errorf("%w: %v", ErrNoTransport, slices.Concat(refusedTransports, c.registry.refusals(CandidateTransport)))
		return nil, c.opts.Policy.Transports.wrapRequired(err)
	}
	unusable := c.probeChannels(r, name, offer, excluded.channels)
	chosen, more := r.chooseChannels(offer.ChannelDeviceDescriptors, unusable)
	refusedChannels := replaceReasons(more, clientName, offer.probing.Refused)
	native, reason, err := c.chooseDialect(offer.marker, offer.marked, canMultiplex(first))
	all := r.routesOf(chosen, native, func(e ChannelEntry, pair devicePair) bool {
		_, out := unusable[e.Name]
		return !out && e.serves(pair, offer.ChannelDeviceDescriptors[e.Name])
	})
	plan := r.newPlan(name, all, append(refusedTransports, all.unused(refusedChannels)...))
	if err := cmp.Or(c.opts.Policy.check(plan), err); err != nil {
		return nil, err
	}
	if offer.preferences.NeedsChannel && len(plan.Channels) == 0 { // the client would refuse the plan
		refused := slices.DeleteFunc(slices.Clone(plan.Refused), func(r Refusal) bool { return r.Kind != CandidateChannel })
		return nil, fmt.Errorf("%w: %s requires a channel, and there is none: %v", ErrPolicy, clientName, refused)
	}
	s := &spec{
		role: channel.RoleListen, plan: plan, routes: all, sizes: r.sizeClasses(all),
		native: native, peerOffers: offer.probing.Offers,
	}
	if offer.marked {
		s.features = offer.marker.Features & c.marker().Features
	}
	if s.native || s.features&wire.FeatureControl != 0 { // the answer has a marker
		offers := map[string][]byte{} // in answer to those of the client
		for _, e := range r.used(all) {
			p, ok := e.Factory.(channel.Prober)
			if theirs, both := offer.probing.Offers[e.Name]; ok && both {
				offers[e.Name] = p.Offer(theirs)
			}
		}
		s.probing = wire.Probing{
			Offers:  offers,
			Refused: r.reasonsByName(CandidateChannel, reasonMap(all.unused(more))),
			Without: r.reasonsByName(CandidateTransport, reasonMap(refused)),
		}
	}
	plan.setDialect(s.native, reason)
	return s, nil
}

// chooseTransport returns the first transport that both ends can use, "" if there is none, and a
// refusal for each of the others. remote has the client's domain descriptors by transport. usable
// reports whether the client can dial a transport of this end. except has the excluded transports,
// with the reason.
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

// chooseChannels returns for each pair of devices the first channel that both ends have and that
// can serve the pair, and a refusal for each channel without a pair. remote has the peer's device
// descriptors by channel, and except the excluded channels with the reason.
func (r *registry) chooseChannels(
	remote map[string]deviceDescriptors, except map[string]string,
) (map[devicePair]string, []Refusal) {
	chosen := map[devicePair]string{}
	var refused []Refusal
	for _, e := range r.channels {
		theirs, offered := remote[e.Name]
		if !offered {
			refused = append(refused, Refusal{CandidateChannel, e.Name, reasonNotOffered})
			continue
		}
		if reason, tried := except[e.Name]; tried {
			refused = append(refused, Refusal{CandidateChannel, e.Name, reason})
			continue
		}
		if reason := e.claimPairs(theirs, chosen); reason != "" {
			refused = append(refused, Refusal{CandidateChannel, e.Name, reason})
		}
	}
	return chosen, refused
}

// claimPairs adds to chosen, with the name of e, every pair of devices that has no channel yet and that
// e can serve. theirs are the peer's descriptors for e. If it adds no pair it returns the reason, and
// otherwise "".
func (e ChannelEntry) claimPairs(theirs deviceDescriptors, chosen map[devicePair]string) (reason string) {
	ours := e.Factory.DeviceDescriptors()
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
			reason = fmt.Sprintf("%s: the peer's %q does not go with our %q",
				pair, sanitize(theirs[pair.remote]), sanitize(ours[pair.local]))
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

// acceptChannels returns at the client the channels that the server chose, by pair of devices. The
// error matches ErrProtocol if a channel was not offered, cannot serve its pair or has a wrong
// number of connections. The order of priorities is not checked: it may differ between the ends.
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

// channelDescriptors returns the device descriptors of this end's usable channels, by channel, for
// the brochure. The caller may change the outer map.
func (r *registry) channelDescriptors() map[string]deviceDescriptors {
	out := make(map[string]deviceDescriptors, len(r.channels))
	for _, e := range r.channels {
		out[e.Name] = e.Factory.DeviceDescriptors()
	}
	return out
}

// transportDomains returns the domain descriptors of this end's usable transports, by transport,
// for the brochure. The caller may change the map.
func (r *registry) transportDomains() map[string]string {
	out := make(map[string]string, len(r.transports))
	for _, e := range r.transports {
		out[e.Name] = e.Transport.DomainDescriptor()
	}
	return out
}

// newPlan returns the plan for a transport and routes, with refused and r.refused as the rejected
// candidates. The dialect is the compatible one until setDialect changes it.
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
		Refused:   slices.Concat([]Refusal{}, refused, r.refused),
	}
}

// sanitize returns text of the peer for an error or a log: the first 80 bytes, with unprintable
// characters replaced.
func sanitize(s string) string { return sanitizeTo(s, 80) }

// sanitizeReason returns the text of a reason that the peer sent, for an error or a log: the first
// 256 bytes, with unprintable characters replaced.
func sanitizeReason(s string) string { return sanitizeTo(s, 256) }

// sanitizeTo returns s, which may be no valid UTF-8, with unprintable characters replaced. Of more
// than n bytes it keeps the first n-3, and adds "...". The result has at most n bytes.
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
