package pipe

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// The choice of a path is a pure function of what both ends announce, and of what
// was found by trying, see probing.go. The end that listens decides; the end that
// dialled checks that it can do what was decided. TensorPipe's rule: the first
// common transport by priority, and for each pair of devices the first common
// channel by priority.

// reasonNotOffered is the reason for what only this end has.
const reasonNotOffered = "the peer does not offer it"

// reasonNotChosen is the reason for what the listening end did not take, where it
// does not say why.
const reasonNotChosen = "the listening end did not choose it"

// devicePair is one device at each end of a pipe.
type devicePair struct{ local, remote device.Device }

func (p devicePair) String() string { return p.local.String() + " to " + p.remote.String() }

// deviceDescriptors is what one end says about its devices for one channel.
type deviceDescriptors = map[device.Device]string

// chooseTransport picks the first transport that the peer can use too, if there is
// one. usable tells which of the local ones the peer could dial. Those in except this
// end does without.
func (r *registry) chooseTransport(remote map[string]string, usable func(name string) bool, except map[string]string) (chosen string, refused []Refusal) {
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
			reason = fmt.Sprintf("the peer is in another domain: %q, not %q", clip(descriptor), e.Transport.DomainDescriptor())
		case chosen != "":
			reason = chosen + " goes before it"
		default:
			chosen = e.Name
			continue
		}
		refused = append(refused, Refusal{What: "transport", Name: e.Name, Reason: reason})
	}
	return chosen, refused
}

// chooseChannels gives each pair of devices the first channel that both ends
// have and that can serve the pair. Those in except this end does without, as where
// they were tried and do not work.
func (r *registry) chooseChannels(remote map[string]deviceDescriptors, except map[string]string) (map[devicePair]string, []Refusal) {
	chosen := map[devicePair]string{}
	var refused []Refusal
	for _, e := range r.channels {
		theirs, offered := remote[e.Name]
		if !offered {
			refused = append(refused, Refusal{"channel", e.Name, reasonNotOffered})
			continue
		}
		if reason, tried := except[e.Name]; tried {
			refused = append(refused, Refusal{"channel", e.Name, reason})
			continue
		}
		if reason := e.claimPairs(theirs, chosen); reason != "" {
			refused = append(refused, Refusal{"channel", e.Name, reason})
		}
	}
	return chosen, refused
}

// claimPairs takes every free pair that the channel can serve. If there is
// none it returns the reason.
func (e ChannelEntry) claimPairs(theirs deviceDescriptors, chosen map[devicePair]string) (reason string) {
	ours := e.Factory.DeviceDescriptors()
	reason = "one of the ends has no device for it"
	claimed := false
	for _, pair := range sortedPairs(ours, theirs) {
		holder, taken := chosen[pair]
		switch {
		case !e.Factory.CanCommunicate(ours[pair.local], theirs[pair.remote]):
			reason = fmt.Sprintf("%s: the peer's %q does not go with our %q", pair, clip(theirs[pair.remote]), clip(ours[pair.local]))
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

func sortedPairs(ours, theirs deviceDescriptors) []devicePair {
	var pairs []devicePair
	for local := range ours {
		for remote := range theirs {
			pairs = append(pairs, devicePair{local, remote})
		}
	}
	slices.SortFunc(pairs, comparePairs)
	return pairs
}

// acceptChannels checks the listening end's choice: each pair must be one that
// this end could have chosen too. Priorities need not agree.
func (r *registry) acceptChannels(answer *wire.BrochureAnswer, native bool) (map[devicePair]string, error) {
	chosen := map[devicePair]string{}
	for pair, name := range answer.ChannelForDevicePair {
		local, remote := pair.Client, pair.Server
		e, known := r.channel(name)
		if !known {
			return nil, protocolError("answer chose channel %q for %s, which this end did not offer", clip(name), local)
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

// offers is what this end tells the peer about its channels.
func (r *registry) offers() map[string]deviceDescriptors {
	out := make(map[string]deviceDescriptors, len(r.channels))
	for _, e := range r.channels {
		out[e.Name] = e.Factory.DeviceDescriptors()
	}
	return out
}

// domains is what this end tells the peer about its transports.
func (r *registry) domains() map[string]string {
	out := make(map[string]string, len(r.transports))
	for _, e := range r.transports {
		out[e.Name] = e.Transport.DomainDescriptor()
	}
	return out
}

// newPlan puts a choice into words.
func (r *registry) newPlan(transport string, chosen routes, refused []Refusal) *Plan {
	return &Plan{
		Dialect:   DialectCompatible,
		Transport: transport,
		Channels:  chosen.planned(),
		Refused:   slices.Concat([]Refusal{}, refused, r.refused),
	}
}

// clip shortens text of the peer for messages, and takes out what would not
// show there or look like a message of its own.
func clip(s string) string { return clipTo(s, 80) }

// clipReason is clip for what a peer says at length, in words that the wire bounds
// to so many bytes.
func clipReason(s string) string { return clipTo(s, 256) }

func clipTo(s string, n int) string {
	if len(s) > n {
		s = s[:n-3] + "..."
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
