package pipe

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// hop is a channel and the size from which on tensors take it, in bytes.
type hop struct {
	channel string
	from    int
}

// route is the channels of a pair of devices: the first takes the largest tensors,
// each further one those that are too small for it, the last all that are left.
type route []hop

// routes are the paths of all tensors.
type routes map[devicePair]route

// extend appends a channel unless all that it could take is taken already. Both
// ends build their routes by it, from channels in the same order.
func (r route) extend(name string, from int) route {
	if len(r) > 0 && r[len(r)-1].from <= from {
		return r
	}
	return append(r, hop{name, from})
}

// close gives the last channel all that is left.
func (r route) close() route {
	r[len(r)-1].from = 0
	return r
}

// routesOf are the routes of the listening end. In the compatible dialect a pair
// has one channel, whatever the size. usable tells which channels serve a pair.
func (r *registry) routesOf(chosen map[devicePair]string, native bool, usable func(ChannelEntry, devicePair) bool) routes {
	out := routes{}
	for pair, name := range chosen {
		if !native {
			out[pair] = route{{name, 0}}
			continue
		}
		var way route
		for _, e := range r.channels {
			if usable(e, pair) {
				way = way.extend(e.Name, max(e.MinBytes, 0))
			}
		}
		out[pair] = way.close()
	}
	return out
}

// sizes are the routes as the answer tells them: the channels in order. There are
// none where sizes do not matter.
func (r *registry) sizes(all routes) []wire.SizeClass {
	sized := false
	for _, way := range all {
		sized = sized || len(way) > 1
	}
	if !sized {
		return nil
	}
	var classes []wire.SizeClass
	for _, e := range r.channels {
		if all.use(e.Name) {
			classes = append(classes, wire.SizeClass{Channel: e.Name, From: uint64(max(e.MinBytes, 0))})
		}
	}
	return classes
}

// acceptRoutes are the routes of the dialling end, by what the answer chose and
// says of sizes.
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
		way, err := r.acceptRoute(pair, classes, answer)
		if err != nil {
			return nil, err
		}
		if len(way) == 0 || way[0].channel != name {
			return nil, protocolError("answer chose channel %q for %s, and says otherwise in its sizes", clip(name), pair)
		}
		out[pair] = way.close()
	}
	return out, nil
}

func (r *registry) acceptRoute(pair devicePair, classes []wire.SizeClass, answer *wire.BrochureAnswer) (route, error) {
	var way route
	for _, c := range classes {
		e, known := r.channel(c.Channel)
		if !known || c.From > math.MaxInt {
			return nil, protocolError("answer gives tensors from %d bytes on channel %q, which this end did not offer", c.From, clip(c.Channel))
		}
		if e.serves(pair, answer.ChannelDeviceDescriptors[c.Channel]) {
			way = way.extend(c.Channel, int(c.From))
		}
	}
	return way, nil
}

// serves reports whether a channel can serve a pair, by what the peer says of its
// devices.
func (e ChannelEntry) serves(pair devicePair, theirs deviceDescriptors) bool {
	ours, here := e.Factory.DeviceDescriptors()[pair.local]
	remote, there := theirs[pair.remote]
	return here && there && e.Factory.CanCommunicate(ours, remote)
}

// use reports whether any route has a channel.
func (all routes) use(name string) bool {
	for _, way := range all {
		if slices.ContainsFunc(way, func(h hop) bool { return h.channel == name }) {
			return true
		}
	}
	return false
}

// without are the refusals of channels that no route has: one that is not the
// first for any pair may still be for smaller tensors.
func (all routes) without(refused []Refusal) []Refusal {
	return slices.DeleteFunc(slices.Clone(refused), func(r Refusal) bool { return all.use(r.Name) })
}

// planned puts routes into words: the pairs in order, the channel of the largest
// tensors first.
func (all routes) planned() []PlannedChannel {
	out := []PlannedChannel{} // and not null in JSON
	for _, pair := range slices.SortedFunc(maps.Keys(all), comparePairs) {
		below := 0
		for _, h := range all[pair] {
			out = append(out, PlannedChannel{Local: pair.local, Remote: pair.remote, Channel: h.channel, Below: below})
			below = h.from
		}
	}
	return out
}

// selected lists the channels that routes use, by name, so that both ends have
// them in the same order.
func (r *registry) selected(all routes) []ChannelEntry {
	var out []ChannelEntry
	for _, e := range r.channels {
		if all.use(e.Name) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b ChannelEntry) int { return strings.Compare(a.Name, b.Name) })
	return out
}
