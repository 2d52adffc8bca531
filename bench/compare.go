package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Comparison is two subjects measured in turn, and yardsticks beside them. A
// ratio is the first figure by the second one of the same pair of runs, and of
// these the median.
type Comparison struct {
	A, B       []*Result // one for each pair; none of a subject that has no such path
	WhyA, WhyB error     // why there are none

	Yardsticks map[string][]*Result // by name, one for each pair
}

// Compare measures a and b in turn: a b, b a, a b and so on, so that neither
// always comes first, and behind each pair the yardsticks. b may be nil. Where one
// of the two has no such path the other one is measured alone; where neither has
// the error matches ErrPath.
func Compare(ctx context.Context, a, b Subject, s Spec, pairs int, yardsticks ...Yardstick) (*Comparison, error) {
	c := &Comparison{Yardsticks: map[string][]*Result{}}
	for i := range pairs {
		err := c.measurePair(ctx, a, b, s, i%2 == 1)
		if err == nil {
			err = c.measureYardsticks(ctx, s, yardsticks)
		}
		if err != nil && b != nil {
			err = fmt.Errorf("pair %d of %d: %w", i+1, pairs, err)
		}
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// side is one of the two of a Comparison.
type side struct {
	subject Subject
	results *[]*Result
	why     *error
}

func (c *Comparison) measurePair(ctx context.Context, a, b Subject, s Spec, bFirst bool) error {
	turn := []side{{a, &c.A, &c.WhyA}}
	if b != nil {
		turn = append(turn, side{b, &c.B, &c.WhyB})
	}
	if bFirst {
		slices.Reverse(turn)
	}
	for _, side := range turn {
		err := side.measure(ctx, s)
		if err != nil && b != nil {
			err = fmt.Errorf("%s: %w", side.subject.Name(), err)
		}
		if err != nil {
			return err
		}
	}
	if len(c.A)+len(c.B) == 0 {
		return errors.Join(c.WhyA, c.WhyB)
	}
	return nil
}

// measure adds a result, unless it is known why there cannot be one.
func (d side) measure(ctx context.Context, s Spec) error {
	if *d.why != nil {
		return nil
	}
	r, err := d.subject.Measure(ctx, s)
	if errors.Is(err, ErrPath) && len(*d.results) == 0 {
		*d.why = err
		return nil
	}
	if err == nil {
		*d.results = append(*d.results, r)
	}
	return err
}

func (c *Comparison) measureYardsticks(ctx context.Context, s Spec, yardsticks []Yardstick) error {
	pair := append(slices.Clone(c.A), c.B...)
	for _, y := range yardsticks {
		r, err := y.Measure(ctx, s, pair[0])
		if err != nil {
			return fmt.Errorf("%s: %w", y.Name(), err)
		}
		if r != nil {
			c.Yardsticks[y.Name()] = append(c.Yardsticks[y.Name()], r)
		}
	}
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

// Ratio is the median of A's figure by B's, over the pairs; 0 if B's is 0, or one
// of the two was not measured.
func (c *Comparison) Ratio(f Figure) float64 { return Ratio(c.A, c.B, f) }

// Ratio is the median of a's figure by b's, over results of the same runs; 0 if
// b's is 0, or there are none. Both may be sides or yardsticks of one Comparison.
func Ratio(a, b []*Result, f Figure) float64 {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		if of := f(b[i]); of > 0 {
			ratios = append(ratios, f(a[i])/of)
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
