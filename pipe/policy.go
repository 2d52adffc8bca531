package pipe

import (
	"fmt"
	"slices"
	"strings"
)

// Policy says which paths a pipe may take. Without one, the best common path
// is taken and the Plan tells which. A policy that cannot be met fails when the
// pipe is opened: a fast path is never lost in silence.
type Policy struct {
	Transports Rule
	Channels   Rule
}

// Rule is the part of a Policy about transports or about channels, by name.
type Rule struct {
	// Require lists the names of which the chosen one must be one, for
	// channels: for every pair of devices that has a channel, and at least one
	// pair must have one; what small tensors take instead is not asked for. Empty:
	// no requirement.
	Require []string

	// Prefer lists names that go before all others, in this order, whatever
	// the priorities. The end that listens decides; a C++ peer refuses the pipe
	// if the result is not what its own priorities give.
	Prefer []string

	// Forbid lists names that are treated as if they were not registered.
	Forbid []string
}

// check reports whether a plan meets the policy.
func (p Policy) check(plan *Plan) error {
	if !p.Transports.allows(plan.Transport) {
		return policyError("transport", plan.Transport, p.Transports, plan)
	}
	for _, c := range plan.Channels {
		if c.Below == 0 && !p.Channels.allows(c.Channel) {
			return policyError("channel for "+c.Local.String()+" to "+c.Remote.String(), c.Channel, p.Channels, plan)
		}
	}
	if len(p.Channels.Require) > 0 && len(plan.Channels) == 0 {
		return policyError("channel", "none", p.Channels, plan)
	}
	return nil
}

func (r Rule) allows(name string) bool {
	return len(r.Require) == 0 || slices.Contains(r.Require, name)
}

// asksFor reports whether the rule names what it wants, and that is among it.
func (r Rule) asksFor(name string) bool {
	return slices.Contains(r.Require, name) || slices.Contains(r.Prefer, name)
}

func policyError(what, got string, rule Rule, plan *Plan) error {
	err := fmt.Errorf("%w: the %s would be %s, required is %s", ErrPolicy, what, got, strings.Join(rule.Require, " or "))
	for _, refusal := range plan.Refused {
		if slices.Contains(rule.Require, refusal.Name) {
			err = fmt.Errorf("%w; %s", err, refusal)
		}
	}
	return err
}
