package faulty

import (
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// Rule selects messages of an agent and the fault to inject into them.
type Rule struct {
	// Types are the message types to match, "" for calls of functions; none stands for
	// all. Wildcards are those of path.Match, but match "/" too.
	Types []string

	// Func is the name of the called function, and Peer that of the receiving worker.
	// Wildcards are as in Types; "" stands for all.
	Func, Peer string

	// Kinds are the kinds of messages to match; none stands for requests.
	Kinds []agent.Kind

	// Skip leaves the first matching messages alone. Of the others the rule is applied to
	// the first, and to each Every-th after it; and to each of these with the given
	// Probability, from 0 to 1. First bounds the messages to which it is applied. For each
	// field 0 stands for no restriction.
	Skip, Every int
	Probability float64
	First       int

	Do Action
}

// Action is a fault to inject. The zero Action has no effect.
type Action struct {
	drop, fail bool
	err        error
	delay      time.Duration
	extra      int
}

// Drop returns the action that discards the message. The sender gets no error.
func Drop() Action { return Action{drop: true} }

// Delay returns the action that sends the message after the time d. Messages sent later may arrive
// earlier. New rejects a rule with a negative d.
func Delay(d time.Duration) Action { return Action{delay: d} }

// Duplicate returns the action that sends the message twice. If several such rules apply, each adds
// one copy.
func Duplicate() Action { return Action{extra: 1} }

// Fail returns the action that makes the sending of the message fail with an *InjectedError, which
// matches ErrInjected and wraps err. The text of that error is the text of err, or, if err is nil,
// names the message and the worker it was to be sent to.
func Fail(err error) Action { return Action{fail: true, err: err} }

// FailFirst returns one rule for each element of types, in that order: sending the first n requests
// of that message type fails with an *InjectedError. An element may have the wildcards of
// Rule.Types. If n is not positive, FailFirst returns nil.
func FailFirst(n int, types ...string) []Rule {
	rules := make([]Rule, len(types))
	for i, typ := range types {
		rules[i] = Rule{Types: []string{typ}, First: n, Do: Fail(nil)}
	}
	if n <= 0 {
		return nil
	}
	return rules
}

// DelayTypes returns one rule for each message type in delays, sorted by type. The rule delays the
// requests of that type by the duration to which delays maps it. The result is nil if delays is
// empty.
func DelayTypes(delays map[string]time.Duration) []Rule {
	var rules []Rule
	for typ, d := range delays {
		rules = append(rules, Rule{Types: []string{typ}, Do: Delay(d)})
	}
	slices.SortFunc(rules, func(x, y Rule) int { return slices.Compare(x.Types, y.Types) })
	return rules
}

func (r *Rule) check() error {
	for _, pattern := range slices.Concat(r.Types, []string{r.Func, r.Peer}) {
		if _, err := path.Match(maskSlashes(pattern), ""); err != nil {
			return fmt.Errorf("%w: pattern %q: %w", ErrRule, pattern, err)
		}
	}
	switch {
	case r.Skip < 0 || r.Every < 0 || r.First < 0:
		return fmt.Errorf("%w: a count is negative", ErrRule)
	case !(r.Probability >= 0 && r.Probability <= 1):
		return fmt.Errorf("%w: a probability of %v", ErrRule, r.Probability)
	case r.Do.delay < 0:
		return fmt.Errorf("%w: a delay of %v", ErrRule, r.Do.delay)
	}
	return nil
}

func (r *Rule) matches(m *agent.Message) bool {
	kinds := r.Kinds
	if len(kinds) == 0 {
		kinds = []agent.Kind{agent.KindRequest}
	}
	return slices.Contains(kinds, m.Kind) &&
		(len(r.Types) == 0 || slices.ContainsFunc(r.Types, func(p string) bool { return glob(p, m.Type) })) &&
		(r.Func == "" || glob(r.Func, m.Name)) &&
		(r.Peer == "" || glob(r.Peer, m.Peer.Name))
}

func glob(pattern, name string) bool {
	ok, _ := path.Match(maskSlashes(pattern), maskSlashes(name)) // check has validated the pattern
	return ok
}

// maskSlashes returns s with each slash, which path.Match treats as a separator, replaced by a
// zero byte.
func maskSlashes(s string) string {
	b := []byte(s)
	for i := range b {
		if b[i] == '/' {
			b[i] = 0
		}
	}
	return string(b)
}
