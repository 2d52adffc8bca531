package faulty

import (
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// Rule says what happens to which messages.
type Rule struct {
	// Types are the types of messages, "" for calls of functions. Empty: all. A type
	// may have the wildcards of path.Match, in which "/" is not special.
	Types []string

	// Func is the name of the function, and Peer that of the worker that the message
	// goes to, with wildcards as Types. Empty: all.
	Func, Peer string

	// Kinds are what the messages are in a call. Empty: requests.
	Kinds []agent.Kind

	// Of the messages that match so far: Skip lets the first ones pass, Every takes
	// each n-th of the others from the first on, and Probability, from 0 to 1, takes
	// one by chance. First bounds how many are taken in all. For each, 0 is no
	// restriction.
	Skip, Every int
	Probability float64
	First       int

	Do Action
}

// Action is what happens to a message. The zero Action is nothing.
type Action struct {
	drop, fail bool
	err        error
	delay      time.Duration
	extra      int
}

// Drop loses the message, and its sender does not notice.
func Drop() Action { return Action{drop: true} }

// Delay has the message leave d later; others may overtake it.
func Delay(d time.Duration) Action { return Action{delay: d} }

// Duplicate sends the message twice.
func Duplicate() Action { return Action{extra: 1} }

// Fail has the sending of the message fail with err, or with an error that says
// what was to be sent. Both match ErrInjected.
func Fail(err error) Action { return Action{fail: true, err: err} }

// FailFirst has the sending of the first n requests of each of these types fail.
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

// DelayTypes has the requests of each of these types leave so much later.
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
		if _, err := path.Match(flat(pattern), ""); err != nil {
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
	ok, _ := path.Match(flat(pattern), flat(name)) // patterns have been checked
	return ok
}

// flat takes away what path.Match takes for the end of an element.
func flat(s string) string {
	b := []byte(s)
	for i := range b {
		if b[i] == '/' {
			b[i] = 0
		}
	}
	return string(b)
}
