package pipe

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// theDialler is how the listening end's plan names who gave it a reason.
const theDialler = "the dialling end"

// overture is what the dialling end says of itself, and what only one of ours does.
type overture struct {
	*wire.Brochure
	marker  wire.Marker
	marked  bool // it is one of ours
	probing wire.Probing
	wishes  wire.Wishes
}

func (c *Context) overture(b *wire.Brochure) overture {
	o := overture{Brochure: b}
	o.marker, o.marked = b.Marker()
	if o.marked = o.marked && !c.unmarked; o.marked {
		o.probing, o.wishes = b.Probing(), b.Wishes()
	}
	return o
}

// choose is the listening end's choice.
func (w *welcomer) choose(brochure *wire.Brochure, first transport.Conn) (*spec, error) {
	c := w.listener.context
	theirs := c.overture(brochure)
	r, without := c.preferring(theirs.wishes), exclusions{}
	if theirs.marked { // others take only what goes first by their own priorities
		without = c.without()
	}
	name, refused := r.chooseTransport(theirs.TransportDomainDescriptors, w.listener.usable, without.transports)
	told := overrule(refused, theDialler, theirs.probing.Without)
	if name == "" {
		return nil, c.noTransport(told)
	}
	tried := c.tryChannels(r, name, theirs, without.channels)
	chosen, more := r.chooseChannels(theirs.ChannelDeviceDescriptors, tried)
	toldMore := overrule(more, theDialler, theirs.probing.Refused)
	native, reason, err := c.chooseDialect(theirs.marker, theirs.marked, carriesSession(first))
	all := r.routesOf(chosen, native, func(e ChannelEntry, pair devicePair) bool {
		_, without := tried[e.Name]
		return !without && e.serves(pair, theirs.ChannelDeviceDescriptors[e.Name])
	})
	plan := r.newPlan(name, all, append(told, all.without(toldMore)...))
	if err := cmp.Or(c.opts.Policy.check(plan), err, theirs.check(plan)); err != nil {
		return nil, err
	}
	s := &spec{role: channel.RoleListen, plan: plan, routes: all, sizes: r.sizes(all), native: native, tried: theirs.probing.Offers}
	if theirs.marked {
		s.features = theirs.marker.Features & c.marker().Features
	}
	if s.native || s.features&wire.FeatureControl != 0 { // the answer has a marker
		s.probing = wire.Probing{
			Offers:  r.answerOffers(all, theirs.probing.Offers),
			Refused: r.reasons("channel", reasonsOf(all.without(more))),
			Without: r.reasons("transport", reasonsOf(refused)),
		}
	}
	plan.noteDialect(s.native, reason)
	return s, nil
}

// tryChannels adds to except the channels that do not work with the peer, or that a
// pipe with one of ours is better off without.
func (c *Context) tryChannels(r *registry, transportName string, theirs overture, except map[string]string) map[string]string {
	tried := r.probeAll(theirs.ChannelDeviceDescriptors, theirs.probing.Offers, except)
	if !theirs.marked {
		return tried
	}
	own := c.opts.Policy.Channels
	return r.passOver(transportName, theirs.ChannelDeviceDescriptors, tried, func(name string) bool {
		return own.asksFor(name) || len(own.Prefer) == 0 && slices.Contains(theirs.wishes.Channels, name)
	})
}

// noTransport says why there is none, and whose policy it is that there is none.
func (c *Context) noTransport(refused []Refusal) error {
	refused = slices.Concat(refused, c.registry.refusals("transport"))
	return c.opts.Policy.Transports.blamed(fmt.Errorf("%w: %v", ErrNoTransport, refused))
}

// check fails where the dialling end would, if it got this choice as an answer.
func (o overture) check(plan *Plan) error {
	if !o.wishes.NeedsChannel || len(plan.Channels) > 0 {
		return nil
	}
	refused := slices.DeleteFunc(slices.Clone(plan.Refused), func(r Refusal) bool { return r.What != "channel" })
	return fmt.Errorf("%w: %s requires a channel, and there is none: %v", ErrPolicy, theDialler, refused)
}
