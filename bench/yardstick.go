package bench

import (
	"context"
	"time"
)

// Yardstick is something simpler than a pipe that moves the same bytes, for the
// figures of a pipe to be held against.
type Yardstick interface {
	// Name is what results call it.
	Name() string

	// Measure moves the messages of s that go one way, from memory like theirs
	// into memory like theirs. It returns nil where that would say nothing about
	// r, a measurement of s. The end of ctx ends it early, with an error.
	Measure(ctx context.Context, s Spec, r *Result) (*Result, error)
}

// Yardsticks are all that there are. The child is as in Go.
func Yardsticks(child Program) []Yardstick { return []Yardstick{Memcpy{}, TCP{child}} }

// yardstickSize is the size from which bytes cost, rather than messages.
const yardstickSize = 64 << 10

// hasYardstick is false where nothing goes one way, or too little of it.
func (s Spec) hasYardstick() bool { return s.Size >= yardstickSize && s.OneWay > 0 }

// floods are the numbers of messages in the batches one way. The first one does
// not count.
func (s Spec) floods() []int {
	out := []int{min(s.OneWay, s.batch())}
	for left := s.OneWay; left > 0; left -= s.batch() {
		out = append(out, min(left, s.batch()))
	}
	return out
}

// newYardstickResult does the sums.
func newYardstickResult(name string, s Spec, took, cpu time.Duration) *Result {
	r := &Result{
		Subject: name, SizeBytes: s.Size, Named: s.Named, Buffers: s.Buffers, Depth: s.Depth,
		Messages: s.OneWay, Processes: 1, CPUSeconds: cpu.Seconds(), Data: s.Data, WireShare: 1,
	}
	r.setRate(took)
	return r
}
