package faulty

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// Options are what a Faulty does.
type Options struct {
	Rules []Rule
	Seed  uint64 // of Rule.Probability
}

// Faulty changes the messages of agents. All methods may be called from any
// goroutine.
type Faulty struct {
	options Options

	mu     sync.Mutex
	rng    *rand.Rand
	counts []Count
}

// Count is what became of a rule.
type Count struct {
	Matched int // messages that it is about
	Taken   int // those of them that it was applied to
}

// New makes a Faulty. The error matches ErrRule.
func New(o Options) (*Faulty, error) {
	o.Rules = slices.Clone(o.Rules)
	for i := range o.Rules {
		if err := o.Rules[i].check(); err != nil {
			return nil, fmt.Errorf("agent/faulty: rule %d: %w", i, err)
		}
	}
	return &Faulty{options: o, rng: rand.New(rand.NewPCG(o.Seed, 0)), counts: make([]Count, len(o.Rules))}, nil
}

// Options is what New was given.
func (f *Faulty) Options() Options {
	return Options{Rules: slices.Clone(f.options.Rules), Seed: f.options.Seed}
}

// Counts is what became of each rule so far.
func (f *Faulty) Counts() []Count {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.counts)
}

// Outgoing is for agent.Config.Outgoing, of one agent or of several.
func (f *Faulty) Outgoing(m *agent.Message) agent.Fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	var fate agent.Fate
	for i := range f.options.Rules {
		r := &f.options.Rules[i]
		if !r.matches(m) || !f.take(r, &f.counts[i]) {
			continue
		}
		fate.Drop = fate.Drop || r.Do.drop
		fate.Delay += r.Do.delay
		fate.Extra += r.Do.extra
		if r.Do.fail && fate.Err == nil {
			fate.Err = failure(r.Do.err, m)
		}
	}
	return fate
}

// take decides whether a rule applies to the next message that matches it. The
// caller holds mu.
func (f *Faulty) take(r *Rule, c *Count) bool {
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
