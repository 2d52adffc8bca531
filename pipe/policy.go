package pipe

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// Policy says which paths a pipe may take. Without one, the best common path
// is taken and the Plan tells which. A policy that cannot be met fails when the
// pipe is opened: a fast path is never lost in silence. The other end is told why,
// if it is one of this library.
type Policy struct {
	Transports Rule
	Channels   Rule
}

// Rule is the part of a Policy about transports or about channels, by name.
type Rule struct {
	// Require lists the names of which the chosen one must be one. This end neither
	// offers nor chooses what it does not name, so that a pipe goes another way if
	// there is one; else it fails with ErrPolicy. A pipe may begin on any transport,
	// and then moves. For channels it is enough that one pair of devices has one.
	// Where a C++ peer dials, its own priorities must give a name of the list.
	// Empty: no requirement.
	Require []string

	// Prefer lists names that go before all others, in this order, whatever
	// the priorities. The end that listens decides; where its rule prefers nothing
	// the preference of the end that dialled counts. A C++ listener does not know
	// that, and a C++ peer that dialled refuses the pipe if the result is not what
	// its own priorities give.
	Prefer []string

	// Forbid lists names that are treated as if they were not registered.
	Forbid []string
}

// check reports whether a plan meets the policy. A peer need not choose what this end
// leaves it.
func (p Policy) check(plan *Plan) error {
	if !p.Transports.allows(plan.Transport) {
		return p.Transports.unmet("transport", plan.Transport, plan.Refused)
	}
	for _, c := range plan.Channels {
		if !p.Channels.allows(c.Channel) {
			return p.Channels.unmet("channel for "+c.Local.String()+" to "+c.Remote.String(), c.Channel, plan.Refused)
		}
	}
	if len(p.Channels.Require) > 0 && len(plan.Channels) == 0 {
		return p.Channels.unmet("channel", "none", plan.Refused)
	}
	return nil
}

func (r Rule) allows(name string) bool {
	return len(r.Require) == 0 || slices.Contains(r.Require, name)
}

// leftOut are those of the names that the rule does not allow, with the reason.
func (r Rule) leftOut(names []string) map[string]string {
	out := map[string]string{}
	for _, name := range names {
		if !r.allows(name) {
			out[name] = "the policy requires " + r.required()
		}
	}
	return out
}

func (r Rule) required() string { return strings.Join(r.Require, " or ") }

// asksFor reports whether the rule names what it wants, and that is among it.
func (r Rule) asksFor(name string) bool {
	return slices.Contains(r.Require, name) || slices.Contains(r.Prefer, name)
}

// unmet is the error of a rule that something else would be chosen against, with what
// is known of the names that it requires.
func (r Rule) unmet(what, got string, refused []Refusal) error {
	err := fmt.Errorf("%w: the %s would be %s, required is %s", ErrPolicy, what, got, r.required())
	for _, refusal := range refused {
		if slices.Contains(r.Require, refusal.Name) {
			err = fmt.Errorf("%w; %s", err, refusal)
		}
	}
	return err
}

// without is what no pipe of the context uses, though it works here.
func (c *Context) without() exclusions {
	policy := c.opts.Policy
	return exclusions{
		transports: policy.Transports.leftOut(names(c.registry.transports, TransportEntry.identity)),
		channels:   policy.Channels.leftOut(names(c.registry.channels, ChannelEntry.identity)),
	}
}

// checkOffer fails where this end has nothing left to offer that its policy allows.
func (c *Context) checkOffer(without exclusions) error {
	policy, r := c.opts.Policy, c.registry
	if err := policy.Transports.checkOffer("transport", names(r.transports, TransportEntry.identity), without.transports, r); err != nil {
		return err
	}
	return policy.Channels.checkOffer("channel", names(r.channels, ChannelEntry.identity), without.channels, r)
}

func (r Rule) checkOffer(what string, have []string, without map[string]string, all *registry) error {
	offered := slices.ContainsFunc(have, func(name string) bool {
		_, out := without[name]
		return !out
	})
	if offered || len(r.Require) == 0 {
		return nil
	}
	reasons := all.reasons(what, without)
	var refused []Refusal
	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		refused = append(refused, Refusal{what, name, reasons[name]})
	}
	return r.unmet(what, "none", refused)
}

// wishes are what this end asks of one that listens.
func (c *Context) wishes() wire.Wishes {
	policy := c.opts.Policy
	return wire.Wishes{
		Transports:   policy.Transports.Prefer,
		Channels:     policy.Channels.Prefer,
		NeedsChannel: len(policy.Channels.Require) > 0,
	}
}

// preferring is the registry in the order that a pipe has it in: that of this end's
// preferences, or, where it has none, of the wishes of the peer.
func (c *Context) preferring(w wire.Wishes) *registry {
	r := *c.registry
	if policy := c.opts.Policy; len(policy.Transports.Prefer) == 0 && len(w.Transports) > 0 {
		r.transports = sortEntries(r.transports, TransportEntry.identity, Rule{Prefer: w.Transports})
	}
	if policy := c.opts.Policy; len(policy.Channels.Prefer) == 0 && len(w.Channels) > 0 {
		r.channels = sortEntries(r.channels, ChannelEntry.identity, Rule{Prefer: w.Channels})
	}
	return &r
}
