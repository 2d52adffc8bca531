package bench

import (
	"context"
	"fmt"
	"slices"
)

// Comparison is two subjects measured in turn. A ratio is the first one's figure
// by the second one's of the same pair of runs, and of these the median.
type Comparison struct {
	A, B []*Result // one for each pair
}

// Compare measures a and b in turn: a b, b a, a b and so on, so that neither
// always comes first.
func Compare(ctx context.Context, a, b Subject, s Spec, pairs int) (*Comparison, error) {
	c := &Comparison{}
	for i := range pairs {
		turn := []func() error{
			func() error { return measureInto(ctx, &c.A, a, s) },
			func() error { return measureInto(ctx, &c.B, b, s) },
		}
		if i%2 == 1 {
			slices.Reverse(turn)
		}
		for _, measure := range turn {
			if err := measure(); err != nil {
				return nil, fmt.Errorf("pair %d of %d: %w", i+1, pairs, err)
			}
		}
	}
	return c, nil
}

func measureInto(ctx context.Context, results *[]*Result, subject Subject, s Spec) error {
	r, err := subject.Measure(ctx, s)
	if err != nil {
		return fmt.Errorf("%s: %w", subject.Name(), err)
	}
	*results = append(*results, r)
	return nil
}

// Figure takes one number out of a result.
type Figure func(*Result) float64

// RTT is the median warm round trip in microseconds. Like all figures it is 0
// where that was not measured.
func RTT(r *Result) float64 { return at50(r.RTT) }

// ColdRTT is the median round trip after idleness, in microseconds.
func ColdRTT(r *Result) float64 { return at50(r.Cold) }

// CPUPerTrip is the processor time of both processes for a warm round trip, in
// microseconds.
func CPUPerTrip(r *Result) float64 { return r.CPUPerTrip }

// Bandwidth is 10^9 bytes per second, one way.
func Bandwidth(r *Result) float64 { return r.GBps }

// Rate is messages per second, one way.
func Rate(r *Result) float64 { return r.MessagesPerSecond }

// CPUPerGB is seconds of CPU time of both processes for 10^9 bytes, one way.
func CPUPerGB(r *Result) float64 { return r.CPUSecondsPerGB }

// CPUPerMessage is microseconds of CPU time of both processes for a message, one
// way.
func CPUPerMessage(r *Result) float64 { return r.CPUSeconds * 1e6 / float64(max(r.Messages, 1)) }

func at50(p *Percentiles) float64 {
	if p == nil {
		return 0
	}
	return p.P50
}

// Ratio is the median of A's figure by B's, over the pairs; 0 if B's is 0.
func (c *Comparison) Ratio(f Figure) float64 {
	var ratios []float64
	for i := range c.A {
		if of := f(c.B[i]); of > 0 {
			ratios = append(ratios, f(c.A[i])/of)
		}
	}
	return median(ratios)
}

// Medians are the medians of the figure for A and for B.
func (c *Comparison) Medians(f Figure) (a, b float64) {
	return Median(c.A, f), Median(c.B, f)
}

// Median is the median of a figure over several runs.
func Median(results []*Result, f Figure) float64 {
	var all []float64
	for _, r := range results {
		all = append(all, f(r))
	}
	return median(all)
}

func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}
