package pipe

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/tensorpipe-go/tensorpipe/channel"
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

	// Inline is the largest size, in bytes, of an inline part of a message that this
	// end sends: a payload, or a tensor in host memory, that travels within the
	// message, without a channel. InlineMessage is the most inline bytes of one
	// message; parts beyond it are not inline. Over TCP they are 64 KiB and 1 MiB, and
	// a message of up to 1 MiB is inline if it follows a single received message, and all
	// its parts could be sent eagerly, see Options.NoEager, or are tensors for which the
	// receiver can only choose cpu:0.
	// Through shared memory both are 2 MiB: all parts of a message of at most that
	// size are inline, and larger messages, and those with compressed parts, have the
	// bounds of TCP. Both are 0 in the compatible dialect.
	Inline        int `json:"inline,omitempty"`
	InlineMessage int `json:"inline_message,omitempty"`
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

// Refusal is a dialect, transport or channel that a pipe does not use, with the reason. If Local or
// Remote is not zero, the pipe only does not use the channel for that device of this end or of the peer.
type Refusal struct {
	Kind   CandidateKind `json:"kind"`
	Name   string        `json:"name"`
	Local  device.Device `json:"local,omitzero"`
	Remote device.Device `json:"remote,omitzero"`
	Reason string        `json:"reason"`
}

// CandidateKind names what a candidate is.
type CandidateKind string

const (
	CandidateDialect   CandidateKind = "dialect"
	CandidateTransport CandidateKind = "transport"
	CandidateChannel   CandidateKind = "channel"
)

func (r Refusal) String() string { return r.candidate() + ": " + r.Reason }

// candidate returns r as text without the reason, as in "channel cma".
func (r Refusal) candidate() string {
	text := string(r.Kind) + " " + r.Name
	if !r.Local.IsZero() {
		text += " for " + r.Local.String() + " here"
	}
	if !r.Remote.IsZero() {
		text += " for " + r.Remote.String() + " there"
	}
	return text
}

// Channel returns the name of the channel that moves tensors between the devices local and remote,
// and true. If the plan has several for this pair, it returns the one for the largest tensors. If
// it has none, it returns "" and false.
func (p *Plan) Channel(local, remote device.Device) (string, bool) {
	c, ok := find(p.Channels, func(c PlannedChannel) bool { return c.Local == local && c.Remote == remote })
	return c.Channel, ok
}

// Equal reports whether p and q have the same dialect, transport, inline sizes, channels and
// refused candidates, each list in the same order. Neither may be nil.
func (p *Plan) Equal(q *Plan) bool {
	return p.Dialect == q.Dialect && p.Transport == q.Transport && p.Inline == q.Inline && p.InlineMessage == q.InlineMessage &&
		slices.Equal(p.Channels, q.Channels) && slices.Equal(p.Refused, q.Refused)
}

// String returns the plan as text for people: a table with a line for the dialect, the transport,
// the inline sizes if there are any, each channel, and each refused candidate with the reason. A
// plan without channels has a line for that.
func (p *Plan) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "dialect\t%s\n", p.Dialect)
	fmt.Fprintf(w, "transport\t%s\n", p.Transport)
	if p.Inline > 0 {
		fmt.Fprintf(w, "inline\t%s\n", p.inlineText())
	}
	for _, c := range p.Channels {
		fmt.Fprintf(w, "%s to %s\t%s\n", c.Local, c.Remote, c.text())
	}
	if len(p.Channels) == 0 {
		fmt.Fprintf(w, "tensors\tno common channel\n")
	}
	for _, r := range p.Refused {
		fmt.Fprintf(w, "not %s\t%s\n", r.candidate(), r.Reason)
	}
	w.Flush()
	return b.String()
}

// inlineText describes the inline parts of a message by their sizes.
func (p *Plan) inlineText() string {
	message := sizeText(p.InlineMessage)
	if p.Inline == p.InlineMessage {
		return "all parts of a message of up to " + message
	}
	return "parts of up to " + sizeText(p.Inline) + ", up to " + message + " of a message"
}

// sizeText returns n bytes as text, in the largest of the units MiB, KiB and byte of which n is a
// multiple: "64 KiB".
func sizeText(n int) string {
	switch {
	case n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}

func (c PlannedChannel) text() string {
	if c.Below == 0 {
		return c.Channel
	}
	return c.Channel + " below " + sizeText(c.Below)
}

// comparePairs returns -1 if a sorts before b, 0 if they are equal and 1 if a sorts after b. Pairs
// are ordered by the local device, and pairs with equal local devices by the remote device.
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

// route lists the channels of a pair of devices by descending from. A tensor takes the first
// channel whose from is not larger than the tensor. The from of the last channel is 0.
type route []sizeClass

// routes has a route for each pair of devices that a channel serves.
type routes map[devicePair]route

// extend appends a channel to r and returns the extended slice: the channel called name, for
// tensors whose size is at least the argument from. If the last channel of r takes all of these
// tensors already, it returns r unchanged. The caller adds channels in the order of priority.
func (r route) extend(name string, from int) route {
	if len(r) > 0 && r[len(r)-1].from <= from {
		return r
	}
	return append(r, sizeClass{name, from})
}

// complete lowers the minimum size of r's last channel to 0, so that it takes all smaller tensors
// too, and returns r. It changes r in place. r must not be empty.
func (r route) complete() route {
	r[len(r)-1].from = 0
	return r
}

// routesOf returns the server's routes, for each pair of devices in chosen; chosen has the name of
// the pair's first channel. If native is false, that channel is the whole route. Otherwise the
// registered channels for which usable reports true follow each other in the order of r: each takes
// the tensors of its MinBytes or more that no earlier channel takes, and is left out if there are
// none; the last one takes all smaller tensors. usable must report true for the chosen channel.
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

// sizeClasses returns the routes in all in the form in which the server's answer has them: each
// channel that a route has, in order of choice, with its MinBytes. If no route has several
// channels, it returns nil.
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

// acceptRoutes returns the client's routes, for each pair of devices in chosen; chosen has the name
// of the pair's first channel. If native is false, or the answer has no size classes, that channel
// is the whole route. Otherwise the size classes determine the route. The error matches
// ErrProtocol: a size class is malformed, names a channel that this end has not offered, or
// contradicts chosen.
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

// serves reports whether the channel can move tensors between the two devices of pair. theirs has
// the peer's device descriptors for this channel; if either end has none for its device, the result
// is false.
func (e ChannelEntry) serves(pair devicePair, theirs deviceDescriptors) bool {
	ours, here := e.descriptors()[pair.local]
	remote, there := theirs[pair.remote]
	return here && there && e.Factory.CanCommunicate(ours, remote)
}

// obstacle returns why devices with these descriptors cannot communicate.
func (e ChannelEntry) obstacle(local, remote string) string {
	if x, ok := e.Factory.(channel.Explainer); ok {
		return sanitizeReason(x.Obstacle(local, remote))
	}
	return fmt.Sprintf("the peer's %q does not go with our %q", sanitize(remote), sanitize(local))
}

// uses reports whether any of the routes in all has the channel with this name.
func (all routes) uses(name string) bool {
	for _, rt := range all {
		if slices.ContainsFunc(rt, func(c sizeClass) bool { return c.channel == name }) {
			return true
		}
	}
	return false
}

// unused returns a copy of refused, a list of refused channels, without the channels that a route
// has. A channel that was refused as the first of a pair may still carry smaller tensors.
func (all routes) unused(refused []Refusal) []Refusal {
	return slices.DeleteFunc(slices.Clone(refused), func(r Refusal) bool { return all.uses(r.Name) })
}

// used returns the entries of the channels that any of the routes in all has, sorted by name. Both
// ends get the same order. The slice is new.
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
