package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Comparison holds the results of measuring two subjects alternately, and yardsticks with them.
type Comparison struct {
	A, B       []*Result // one for each pair; none for a subject without such a path
	WhyA, WhyB error     // the reason if there are none

	Yardsticks map[string][]*Result // by name, one for each pair
}

// Compare measures a and b in pairs of runs (a b, b a, a b and so on), so that neither always comes
// first, and the yardsticks after each pair. It returns the results of all pairs, whose number is
// the argument pairs. b may be nil: then only a is measured. A subject whose first measurement fails
// with ErrPath is left out of the comparison; if no other one is left, the error matches ErrPath. Any
// other error of a measurement ends the comparison. With an error the Comparison is nil.
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

// subjectRun is a subject of a Comparison, with the fields of the Comparison that take its results and
// the reason why it has none.
type subjectRun struct {
	subject Subject
	results *[]*Result
	why     *error
}

// measurePair measures a and then b, or b first if bFirst is true, and appends the results to c. b
// may be nil. If the first measurement of a subject fails with ErrPath, measurePair records the
// error in c as the reason and leaves that subject out from then on. It returns any other error of
// a measurement, or an error that matches ErrPath if no subject can be measured.
func (c *Comparison) measurePair(ctx context.Context, a, b Subject, s Spec, bFirst bool) error {
	runs := []subjectRun{{a, &c.A, &c.WhyA}}
	if b != nil {
		runs = append(runs, subjectRun{b, &c.B, &c.WhyB})
	}
	if bFirst {
		slices.Reverse(runs)
	}
	for _, run := range runs {
		if *run.why != nil {
			continue // its path does not work
		}
		r, err := run.subject.Measure(ctx, s)
		switch {
		case err == nil:
			*run.results = append(*run.results, r)
		case errors.Is(err, ErrPath) && len(*run.results) == 0:
			*run.why = err
		case b != nil:
			return fmt.Errorf("%s: %w", run.subject.Name(), err)
		default:
			return err
		}
	}
	if len(c.A)+len(c.B) == 0 {
		return errors.Join(c.WhyA, c.WhyB)
	}
	return nil
}

// measureYardsticks measures each yardstick for the first result of A or, if A has none, of B, and
// appends the results to c. A yardstick that is not comparable with that result has none. At the
// first error measureYardsticks stops and returns it. c must have at least one result.
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

// Figure returns one number of a result, 0 if it was not measured.
type Figure func(*Result) float64

// RTT returns the median warm round trip in microseconds, or 0 if none was measured.
func RTT(r *Result) float64 { return at50(r.RTT) }

// ColdRTT returns the median round trip after an idle time in microseconds, or 0 if none was
// measured.
func ColdRTT(r *Result) float64 { return at50(r.Cold) }

// HandOver returns the median time from a Write to the return of the server's Read in microseconds, or 0
// if it was not measured.
func HandOver(r *Result) float64 { return at50(r.HandOver) }

// CPUPerTrip returns the CPU time of both processes per warm round trip in microseconds, or 0 if
// none was measured.
func CPUPerTrip(r *Result) float64 { return r.CPUPerTrip }

// Bandwidth returns the one-way bandwidth in 10^9 bytes per second, or 0 if it was not measured.
func Bandwidth(r *Result) float64 { return r.GBps }

// Rate returns the one-way rate in messages per second, or 0 if it was not measured.
func Rate(r *Result) float64 { return r.MessagesPerSecond }

// CPUPerGB returns the CPU time of both processes in seconds per 10^9 bytes sent one way, or 0 if
// it was not measured.
func CPUPerGB(r *Result) float64 { return r.CPUSecondsPerGB }

// CPUPerMessage returns the CPU time of both processes in microseconds per message sent one way, or
// 0 if it was not measured.
func CPUPerMessage(r *Result) float64 { return r.CPUSeconds * 1e6 / float64(max(r.Messages, 1)) }

// at50 returns the median of p, or 0 if p is nil.
func at50(p *Percentiles) float64 {
	if p == nil {
		return 0
	}
	return p.P50
}

// Ratio returns the median, over the pairs of runs, of the figure of A divided by that of B. It
// leaves out the pairs in which the figure of B is 0, and returns 0 if no pair remains.
func (c *Comparison) Ratio(f Figure) float64 { return Ratio(c.A, c.B, f) }

// Ratio returns the median, over all i that both slices have, of f(a[i]) divided by f(b[i]). The
// two results with the same index must be of the same run of one Comparison, each of a subject or
// of a yardstick. Ratio leaves out the pairs in which f(b[i]) is 0, and returns 0 if no pair
// remains.
func Ratio(a, b []*Result, f Figure) float64 {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		if of := f(b[i]); of > 0 {
			ratios = append(ratios, f(a[i])/of)
		}
	}
	return median(ratios)
}

// Medians returns the median of the figure f over the results of A, and that over the results of B.
// A subject without results has the median 0.
func (c *Comparison) Medians(f Figure) (a, b float64) {
	return Median(c.A, f), Median(c.B, f)
}

// Median returns the median of the figure f over results, or 0 if there are none.
func Median(results []*Result, f Figure) float64 {
	var all []float64
	for _, r := range results {
		all = append(all, f(r))
	}
	return median(all)
}

// median returns the median of the numbers in the slice all: the middle number, or the mean of the
// two middle ones. It returns 0 if the slice is empty. It does not change the slice.
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
