// Package faulty drops, delays, duplicates or rejects messages of an agent, for tests of
// how an application handles such faults.
//
//	f, err := faulty.New(faulty.Options{Rules: []faulty.Rule{
//		{Types: []string{"rref.fork"}, First: 3, Do: faulty.Fail(nil)},
//		{Func: "example.*", Do: faulty.Delay(time.Second)},
//	}})
//	config.FaultHook = f.Inject
//
// Rules apply to the messages that an agent sends, also to itself: to its requests and,
// if a rule's Kinds include them, to its cancellations and its replies. All rules that
// match a message apply: delays add up, and an error takes precedence over a drop.
package faulty

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

var (
	// ErrInjected: a rule made the sending of a message fail.
	ErrInjected = errors.New("injected failure")

	// ErrRule: a rule is invalid.
	ErrRule = errors.New("wrong rule")
)

// InjectedError is the error with which a rule made the sending of a message fail. It matches
// ErrInjected.
type InjectedError struct {
	Message string // the type of the message, or its function if it has no type
	Worker  string // the name of the worker to which it was to be sent
	Err     error  // the error given to Fail, which may be nil
}

func (e *InjectedError) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return fmt.Sprintf("%v: %s to %s was not sent", ErrInjected, e.Message, e.Worker)
}

// Unwrap returns the error given to Fail, which may be nil.
func (e *InjectedError) Unwrap() error { return e.Err }

// Is reports whether target is ErrInjected.
func (e *InjectedError) Is(target error) bool { return target == ErrInjected }

// failure returns an *InjectedError that describes m and wraps err. err is the error given to Fail
// and may be nil.
func failure(err error, m *agent.Message) error {
	e := &InjectedError{Message: m.Name, Worker: m.Peer.Name, Err: err}
	if m.Type != "" {
		e.Message = m.Type
	}
	return e
}

// Options configures a Faulty.
type Options struct {
	Rules []Rule
	Seed  uint64 // of the random numbers for Rule.Probability
}

// Faulty injects faults into the messages of agents. All methods may be called
// concurrently.
type Faulty struct {
	options Options

	mu     sync.Mutex
	rng    *rand.Rand
	counts []Count
}

// Count is the number of messages that one rule has seen.
type Count struct {
	Matched int // messages that match the rule
	Taken   int // messages to which the rule was applied
}

// New returns a Faulty that applies the rules of o. It copies the slice o.Rules, but not the slices
// Types and Kinds of each rule, which the caller must not modify afterwards. If a rule is invalid,
// New returns nil and an error that matches ErrRule.
func New(o Options) (*Faulty, error) {
	o.Rules = slices.Clone(o.Rules)
	for i := range o.Rules {
		if err := o.Rules[i].check(); err != nil {
			return nil, fmt.Errorf("agent/faulty: rule %d: %w", i, err)
		}
	}
	return &Faulty{options: o, rng: rand.New(rand.NewPCG(o.Seed, 0)), counts: make([]Count, len(o.Rules))}, nil
}

// Options returns the options given to New. The slice Rules is a copy, but its rules share their
// slices Types and Kinds with f and must not be modified through them.
func (f *Faulty) Options() Options {
	return Options{Rules: slices.Clone(f.options.Rules), Seed: f.options.Seed}
}

// Counts returns a copy of the current counts of each rule, in the order of Options.Rules.
func (f *Faulty) Counts() []Count {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.counts)
}

// Inject returns the fault for the message m, for use as agent.Config.FaultHook of one agent or
// several. The fault combines all rules that apply to m: the message is dropped if one of them
// drops it, delays and additional copies add up, and the error is that of the first rule that has
// one. If no rule applies, the result is the zero Fault. Inject counts m as matched for each rule
// that matches it, and as taken for each rule that applies. It does not keep m.
func (f *Faulty) Inject(m *agent.Message) agent.Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	var fault agent.Fault
	for i := range f.options.Rules {
		r := &f.options.Rules[i]
		if !r.matches(m) || !f.applies(r, &f.counts[i]) {
			continue
		}
		fault.Drop = fault.Drop || r.Do.drop
		fault.Delay += r.Do.delay
		fault.Extra += r.Do.extra
		if r.Do.fail && fault.Err == nil {
			fault.Err = failure(r.Do.err, m)
		}
	}
	return fault
}

// applies reports whether the fault of r is injected into a message that r matches, after Skip,
// First, Every and Probability of r. It counts the message in c as matched, and if the result is
// true also as taken. The caller holds f.mu.
func (f *Faulty) applies(r *Rule, c *Count) bool {
	n := c.Matched - r.Skip
	c.Matched++
	switch {
	case n < 0,
		r.First > 0 && c.Taken >= r.First,
		r.Every > 1 && n%r.Every != 0,
		r.Probability > 0 && f.rng.Float64() >= r.Probability:
		return false
	}
	c.Taken++
	return true
}
