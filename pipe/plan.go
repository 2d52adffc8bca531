package pipe

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// Dialect names the wire protocol of a pipe.
type Dialect string

const (
	// DialectCompatible is TensorPipe's own wire protocol, which C++ peers use.
	DialectCompatible Dialect = "compatible"

	// DialectNative is the protocol between two ends of this library.
	DialectNative Dialect = "native"

	// DialectAuto, in Options, is the native dialect if the peer supports it, and the
	// compatible one otherwise.
	DialectAuto Dialect = "auto"
)

// Plan is the path that the two ends of a pipe agreed on, as plain data that can be
// printed, logged and compared.
type Plan struct {
	Dialect   Dialect          `json:"dialect"`
	Transport string           `json:"transport"`
	Channels  []PlannedChannel `json:"channels"` // ordered by local, then remote device
	Refused   []Refusal        `json:"refused"`  // rejected candidates, best first

	// Inline is the largest size, in bytes, of a tensor or payload in host memory
	// that is sent within its message, without a channel. It is 0 in the
	// compatible dialect.
	Inline int `json:"inline,omitempty"`
}

// PlannedChannel names a channel that moves tensors between two devices. A pair of devices
// may have several, for tensors of different sizes, with that of the largest first.
type PlannedChannel struct {
	Local   device.Device `json:"local"`
	Remote  device.Device `json:"remote"`
	Channel string        `json:"channel"`

	// Below, if it is not 0, bounds the tensors of the channel: they have fewer bytes.
	Below int `json:"below,omitempty"`
}

// Refusal is a dialect, transport or channel that a pipe does not use, with the reason.
type Refusal struct {
	Kind   CandidateKind `json:"kind"`
	Name   string        `json:"name"`
	Reason string        `json:"reason"`
}

// CandidateKind names what a candidate is.
type CandidateKind string

const (
	CandidateDialect   CandidateKind = "dialect"
	CandidateTransport CandidateKind = "transport"
	CandidateChannel   CandidateKind = "channel"
)

func (r Refusal) String() string { return string(r.Kind) + " " + r.Name + ": " + r.Reason }

// Channel returns the name of the channel between a local and a remote device and true, or false if
// there is none. If there are several, it returns the channel of the largest tensors.
func (p *Plan) Channel(local, remote device.Device) (string, bool) {
	c, ok := find(p.Channels, func(c PlannedChannel) bool { return c.Local == local && c.Remote == remote })
	return c.Channel, ok
}

// Equal reports whether two plans have the same choices and the same refusals.
func (p *Plan) Equal(q *Plan) bool {
	return p.Dialect == q.Dialect && p.Transport == q.Transport && p.Inline == q.Inline &&
		slices.Equal(p.Channels, q.Channels) && slices.Equal(p.Refused, q.Refused)
}

// String returns the plan as a table of a few lines.
func (p *Plan) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "dialect\t%s\n", p.Dialect)
	fmt.Fprintf(w, "transport\t%s\n", p.Transport)
	if p.Inline > 0 {
		fmt.Fprintf(w, "up to %d bytes\tinside the message\n", p.Inline)
	}
	for _, c := range p.Channels {
		fmt.Fprintf(w, "%s to %s\t%s\n", c.Local, c.Remote, c.text())
	}
	if len(p.Channels) == 0 {
		fmt.Fprintf(w, "tensors\tno common channel\n")
	}
	for _, r := range p.Refused {
		fmt.Fprintf(w, "not %s %s\t%s\n", r.Kind, r.Name, r.Reason)
	}
	w.Flush()
	return b.String()
}

func (c PlannedChannel) text() string {
	if c.Below == 0 {
		return c.Channel
	}
	return fmt.Sprintf("%s below %d bytes", c.Channel, c.Below)
}

// comparePairs returns -1, 0 or 1 as a sorts before, with or after b: by the local device first,
// then by the remote one.
func comparePairs(a, b devicePair) int {
	return cmp.Or(compareDevices(a.local, b.local), compareDevices(a.remote, b.remote))
}

func compareDevices(a, b device.Device) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Index, b.Index))
}

// sizeClass is a channel and the smallest size, in bytes, of the tensors that take it.
type sizeClass struct {
	channel string
	from    int
}

// route lists the channels of a pair of devices by descending from. A tensor takes the first channel
// whose from is not larger than the tensor. The from of the last channel is 0.
type route []sizeClass

// routes has a route for each pair of devices that a channel serves.
type routes map[devicePair]route

// extend appends the channel name for tensors of from bytes or more to r and returns the extended
// route. If the last channel of r takes all of these tensors, it returns r. Both ends build their
// routes with extend, from channels in the same order.
func (r route) extend(name string, from int) route {
	if len(r) > 0 && r[len(r)-1].from <= from {
		return r
	}
	return append(r, sizeClass{name, from})
}

// complete makes the last channel of r take all smaller tensors too, and returns r. It changes r, which
// must not be empty.
func (r route) complete() route {
	r[len(r)-1].from = 0
	return r
}

// routesOf returns the server's routes for the pairs of devices in chosen, which has the first channel
// of each. In the compatible dialect a pair has only this channel, for all sizes. In the native dialect
// a pair has the channels for which usable reports that they can serve it, by their MinBytes. usable
// must report true for the chosen channel.
func (r *registry) routesOf(chosen map[devicePair]string, native bool, usable func(ChannelEntry, devicePair) bool) routes {
	out := routes{}
	for pair, name := range chosen {
		if !native {
			out[pair] = route{{name, 0}}
			continue
		}
		var rt route
		for _, e := range r.channels {
			if usable(e, pair) {
				rt = rt.extend(e.Name, max(e.MinBytes, 0))
			}
		}
		out[pair] = rt.complete()
	}
	return out
}

// sizeClasses returns the routes in the form of the answer: the channels that are used, in order of
// choice, each with the smallest size of its tensors. It returns nil if no pair has several
// channels.
func (r *registry) sizeClasses(all routes) []wire.SizeClass {
	sized := false
	for _, rt := range all {
		sized = sized || len(rt) > 1
	}
	if !sized {
		return nil
	}
	var classes []wire.SizeClass
	for _, e := range r.channels {
		if all.uses(e.Name) {
			classes = append(classes, wire.SizeClass{Channel: e.Name, From: uint64(max(e.MinBytes, 0))})
		}
	}
	return classes
}

// acceptRoutes returns the client's routes. In the compatible dialect, or if the answer has no size
// classes, a pair of devices has only the channel in chosen. Otherwise the size classes determine the
// channels of a pair. The error matches ErrProtocol.
func (r *registry) acceptRoutes(chosen map[devicePair]string, answer *wire.BrochureAnswer, native bool) (routes, error) {
	classes, err := answer.Sizes()
	if err != nil {
		return nil, protocolError("answer: %w", err)
	}
	out := routes{}
	for pair, name := range chosen {
		out[pair] = route{{name, 0}}
		if !native || len(classes) == 0 {
			continue
		}
		var rt route
		for _, c := range classes {
			e, known := r.channel(c.Channel)
			if !known || c.From > math.MaxInt {
				return nil, protocolError("answer gives tensors from %d bytes on channel %q, which this end did not offer",
					c.From, sanitize(c.Channel))
			}
			if e.serves(pair, answer.ChannelDeviceDescriptors[c.Channel]) {
				rt = rt.extend(c.Channel, int(c.From))
			}
		}
		if len(rt) == 0 || rt[0].channel != name {
			return nil, protocolError("answer chose channel %q for %s, which its sizes contradict", sanitize(name), pair)
		}
		out[pair] = rt.complete()
	}
	return out, nil
}

// serves reports whether the channel can serve a pair of devices. theirs are the peer's descriptors
// for the channel.
func (e ChannelEntry) serves(pair devicePair, theirs deviceDescriptors) bool {
	ours, here := e.Factory.DeviceDescriptors()[pair.local]
	remote, there := theirs[pair.remote]
	return here && there && e.Factory.CanCommunicate(ours, remote)
}

// uses reports whether any of the routes has the named channel.
func (all routes) uses(name string) bool {
	for _, rt := range all {
		if slices.ContainsFunc(rt, func(c sizeClass) bool { return c.channel == name }) {
			return true
		}
	}
	return false
}

// unused returns a copy of refused, a list of channels, without the channels that a route has. A
// channel that is not the first of any pair may still carry smaller tensors.
func (all routes) unused(refused []Refusal) []Refusal {
	return slices.DeleteFunc(slices.Clone(refused), func(r Refusal) bool { return all.uses(r.Name) })
}

// used returns the channels that the routes have, sorted by name, so that both ends have them in
// the same order.
func (r *registry) used(all routes) []ChannelEntry {
	var out []ChannelEntry
	for _, e := range r.channels {
		if all.uses(e.Name) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b ChannelEntry) int { return strings.Compare(a.Name, b.Name) })
	return out
}
