package pipe

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// Policy restricts the paths that a pipe may take. The zero Policy allows all: the pipe
// takes the best common path, which is in its Plan. A pipe that cannot meet the policy is
// not opened, so that a fast path is never lost unnoticed. A peer of this library
// receives the reason.
type Policy struct {
	Transports Rule
	Channels   Rule
}

// Rule is the part of a Policy for transports or for channels, by name.
type Rule struct {
	// Require lists the allowed names. This end neither offers nor chooses others; if
	// no allowed one is left, opening fails with ErrPolicy. The handshake may begin on
	// any transport and then moves. For channels it is enough that one pair of devices
	// has one. If a C++ peer dials, the choice by its own priorities must be in the
	// list. Empty: no requirement.
	Require []string

	// Prefer lists names that go before all others, in this order and regardless of
	// the priorities. The server's list counts, or the client's if the server's is
	// empty. A C++ server does not know the client's list, and a C++ client refuses
	// a pipe whose path is not the result of its own priorities.
	Prefer []string

	// Forbid lists names that are treated as if they were not registered.
	Forbid []string
}

// check returns nil if the plan meets the policy, and otherwise an error that matches ErrPolicy. The
// client calls it too, because a server need not choose from what the client has offered.
func (p Policy) check(plan *Plan) error {
	if !p.Transports.allows(plan.Transport) {
		return p.Transports.unmetError("transport", plan.Transport, plan.Refused)
	}
	for _, c := range plan.Channels {
		if !p.Channels.allows(c.Channel) {
			return p.Channels.unmetError("channel for "+c.Local.String()+" to "+c.Remote.String(), c.Channel, plan.Refused)
		}
	}
	if len(p.Channels.Require) > 0 && len(plan.Channels) == 0 {
		return p.Channels.unmetError("channel", "none", plan.Refused)
	}
	return nil
}

func (r Rule) allows(name string) bool {
	return len(r.Require) == 0 || slices.Contains(r.Require, name)
}

// excluded returns, by name, the names that the rule does not allow, with the reason.
func (r Rule) excluded(names []string) map[string]string {
	out := map[string]string{}
	for _, name := range names {
		if !r.allows(name) {
			out[name] = "the policy requires " + r.required()
		}
	}
	return out
}

func (r Rule) required() string { return strings.Join(r.Require, " or ") }

// unmetError returns an error that matches ErrPolicy, for a choice that the rule does not allow. what
// names the kind of choice, and got is the choice. The text has the reasons in refused why the required
// names were not chosen.
func (r Rule) unmetError(what, got string, refused []Refusal) error {
	err := fmt.Errorf("%w: the %s would be %s, required is %s", ErrPolicy, what, got, r.required())
	for _, refusal := range refused {
		if slices.Contains(r.Require, refusal.Name) {
			err = fmt.Errorf("%w; %s", err, refusal)
		}
	}
	return err
}

// excludedByPolicy returns the usable transports and channels that the policy does not allow, with
// the reasons.
func (c *Context) excludedByPolicy() exclusions {
	policy := c.opts.Policy
	return exclusions{
		transports: policy.Transports.excluded(names(c.registry.transports, TransportEntry.identity)),
		channels:   policy.Channels.excluded(names(c.registry.channels, ChannelEntry.identity)),
	}
}

// checkOffer returns an error that matches ErrPolicy if the policy requires a transport or channel
// and all usable ones are in excluded.
func (c *Context) checkOffer(excluded exclusions) error {
	policy, r := c.opts.Policy, c.registry
	if err := policy.Transports.checkOffer(CandidateTransport, names(r.transports, TransportEntry.identity), excluded.transports, r); err != nil {
		return err
	}
	return policy.Channels.checkOffer(CandidateChannel, names(r.channels, ChannelEntry.identity), excluded.channels, r)
}

// checkOffer returns an error that matches ErrPolicy if the rule requires names and all usable names
// are excluded. Otherwise it returns nil. have lists the usable names of this kind. excluded has the
// names that are not offered, with the reasons.
func (r Rule) checkOffer(kind CandidateKind, have []string, excluded map[string]string, all *registry) error {
	offered := slices.ContainsFunc(have, func(name string) bool {
		_, out := excluded[name]
		return !out
	})
	if offered || len(r.Require) == 0 {
		return nil
	}
	reasons := all.reasonsByName(kind, excluded)
	var refused []Refusal
	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		refused = append(refused, Refusal{kind, name, reasons[name]})
	}
	return r.unmetError(string(kind), "none", refused)
}

// preferences returns the part of the policy that a client sends to the server: the preferred names,
// and whether the client requires a channel.
func (c *Context) preferences() wire.Preferences {
	policy := c.opts.Policy
	return wire.Preferences{
		Transports:   policy.Transports.Prefer,
		Channels:     policy.Channels.Prefer,
		NeedsChannel: len(policy.Channels.Require) > 0,
	}
}

// orderedRegistry returns a copy of the registry in the order of choice for one pipe. The order follows
// this end's preferences or, where it has none, the client's preferences in w.
func (c *Context) orderedRegistry(w wire.Preferences) *registry {
	r := *c.registry
	if policy := c.opts.Policy; len(policy.Transports.Prefer) == 0 && len(w.Transports) > 0 {
		r.transports = sortEntries(r.transports, TransportEntry.identity, Rule{Prefer: w.Transports})
	}
	if policy := c.opts.Policy; len(policy.Channels.Prefer) == 0 && len(w.Channels) > 0 {
		r.channels = sortEntries(r.channels, ChannelEntry.identity, Rule{Prefer: w.Channels})
	}
	return &r
}

// wrapRequired returns err, the error for a choice without candidates. If the rule requires any name,
// the result also matches ErrPolicy.
func (r Rule) wrapRequired(err error) error {
	if len(r.Require) == 0 {
		return err
	}
	return fmt.Errorf("%w: required is %s: %w", ErrPolicy, r.required(), err)
}
