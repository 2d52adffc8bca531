package pipe

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
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
	// list. A name that no entry has is an error of New. Empty: no requirement.
	Require []string

	// Prefer lists names that go before all others, in this order and regardless of
	// the priorities. The server's list counts, or the client's if the server's is
	// empty. A C++ server does not know the client's list, and a C++ client refuses
	// a pipe whose path is not the result of its own priorities. New logs a warning
	// for a name that no entry has.
	Prefer []string

	// Forbid lists names that are treated as if they were not registered. New logs a
	// warning for a name that no entry has.
	Forbid []string
}

// checkNames returns nil if the transports and channels of o have all names that o.Policy requires.
// In that case it also logs a warning to log for each name that o.Policy prefers or forbids and no
// entry has. If a required name is missing, the error matches ErrOptions.
func (o Options) checkNames(log *slog.Logger) error {
	transports, channels := names(o.Transports, TransportEntry.identity), names(o.Channels, ChannelEntry.identity)
	return cmp.Or(
		o.Policy.Transports.checkNames("Policy.Transports", CandidateTransport, transports, log),
		o.Policy.Channels.checkNames("Policy.Channels", CandidateChannel, channels, log),
	)
}

// checkNames returns nil if known, the names of the entries, has all names that r requires. In that
// case it also logs a warning to log for each name that r prefers or forbids and known lacks. If a
// required name is missing, it logs nothing, and the error matches ErrOptions. field is the name of
// the field that r is, for the error and the warnings; kind is the kind of the names, for the
// error.
func (r Rule) checkNames(field string, kind CandidateKind, known []string, log *slog.Logger) error {
	registered := cmp.Or(strings.Join(known, ", "), "none")
	for _, name := range r.Require {
		if !slices.Contains(known, name) {
			return fmt.Errorf("%w: %s.Require: no %s %q (registered: %s)", ErrOptions, field, kind, name, registered)
		}
	}
	for part, list := range map[string][]string{".Prefer": r.Prefer, ".Forbid": r.Forbid} {
		for _, name := range list {
			if !slices.Contains(known, name) {
				log.Warn("unknown name in the policy", "field", field+part, "name", name, "registered", registered)
			}
		}
	}
	return nil
}

// check returns nil if the policy allows the transport and all channels of plan, and plan has a
// channel if the policy requires one. Otherwise the error matches ErrPolicy. The client calls it
// too, because the server may choose a path that the client has not offered.
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

// excluded returns those of names that the rule does not allow, each with the reason as text. The
// map is empty if the rule requires none.
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

// unmetError returns an error that matches ErrPolicy and reports that a choice does not meet the
// rule. what names the kind of the choice, such as "transport", and got the choice itself. The text
// also has those reasons in refused that are about names that the rule requires.
func (r Rule) unmetError(what, got string, refused []Refusal) error {
	err := fmt.Errorf("%w: the %s would be %s, required is %s", ErrPolicy, what, got, r.required())
	for _, refusal := range refused {
		if slices.Contains(r.Require, refusal.Name) {
			err = fmt.Errorf("%w; %s", err, refusal)
		}
	}
	return err
}

// policyFor returns the policy of the context for a pipe, or for the session of Conns if forConns
// is set: a session has no channels, so the rule for channels does not apply to it.
func (c *Context) policyFor(forConns bool) Policy {
	policy := c.opts.Policy
	if forConns {
		policy.Channels = Rule{}
	}
	return policy
}

// excludedBy returns the usable transports and channels of c that policy does not allow, by name,
// each with the reason as text.
func (c *Context) excludedBy(policy Policy) exclusions {
	return exclusions{
		transports: policy.Transports.excluded(names(c.registry.transports, TransportEntry.identity)),
		channels:   policy.Channels.excluded(names(c.registry.channels, ChannelEntry.identity)),
		devices:    map[string]map[device.Device]string{},
		noSession:  map[string]string{},
	}
}

// checkOffer is called by the client before it sends an offer. It returns an error that matches
// ErrPolicy if policy requires transports and excluded has all usable ones, or requires channels
// and excluded has all usable ones. Otherwise it returns nil.
func (c *Context) checkOffer(policy Policy, excluded exclusions) error {
	r := c.registry
	if err := policy.Transports.checkOffer(CandidateTransport, names(r.transports, TransportEntry.identity), excluded.transports, r); err != nil {
		return err
	}
	return policy.Channels.checkOffer(CandidateChannel, names(r.channels, ChannelEntry.identity), excluded.channels, r)
}

// checkOffer returns an error that matches ErrPolicy if the rule requires names and nothing of this
// kind is left to offer. Otherwise it returns nil. have lists the usable names, excluded those that
// are not offered, with the reasons. The error's text has these reasons, and those of the registry
// all, for the required names.
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
		refused = append(refused, Refusal{Kind: kind, Name: name, Reason: reasons[name]})
	}
	return r.unmetError(string(kind), "none", refused)
}

// preferences returns the part of the policy that a client sends to the server: the preferred
// names, and whether the client requires a channel. The result shares the policy's slices.
func (p Policy) preferences() wire.Preferences {
	return wire.Preferences{
		Transports:   p.Transports.Prefer,
		Channels:     p.Channels.Prefer,
		NeedsChannel: len(p.Channels.Require) > 0,
	}
}

// orderedRegistry returns a copy of the registry with transports and channels in the order of
// choice for one pipe. For each of the two lists, the preferences w of the client decide only if
// this end's policy has none. The copy shares the entries with the registry and must not be
// changed.
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

// wrapRequired adds the required names to err, the error of a choice without candidates: the result
// matches err and ErrPolicy. If the rule requires no name, it returns err itself.
func (r Rule) wrapRequired(err error) error {
	if len(r.Require) == 0 {
		return err
	}
	return fmt.Errorf("%w: required is %s: %w", ErrPolicy, r.required(), err)
}
