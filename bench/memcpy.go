package bench

import (
	"cmp"
	"context"
	"time"
)

// Memcpy is the copy of Go, from the memory of one message into that of
// another, on one core.
type Memcpy struct{}

// Name is "memcpy".
func (Memcpy) Name() string { return "memcpy" }

// Measure implements Yardstick.
func (m Memcpy) Measure(ctx context.Context, s Spec, _ *Result) (*Result, error) {
	s = s.withDefaults()
	if !s.hasYardstick() {
		return nil, nil
	}
	from, to := arena{buffers: s.Buffers}, arena{buffers: s.Buffers}
	defer from.release()
	defer to.release()
	if err := cmp.Or(from.resize(s.batch(), s.Size), to.resize(s.batch(), s.Size)); err != nil {
		return nil, err
	}
	var took, cpu time.Duration
	for i, n := range s.floods() {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		from.fill(n, i)
		before, start := cpuTime(), time.Now()
		for k := range n {
			copy(to.slot(k), from.slot(k))
		}
		if i > 0 {
			took, cpu = took+time.Since(start), cpu+cpuTime()-before
		}
		if err := to.check(n, i); err != nil {
			return nil, err
		}
	}
	return newYardstickResult(m.Name(), s, took, cpu), nil
}
