package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/chart"
)

// benchDrawing is the benchReport that collects all results for the chart of -svg.
type benchDrawing struct {
	facts  string
	series []*benchSeries
}

// benchSeries is a line of the chart: the results of one library or yardstick on one path.
type benchSeries struct {
	path, subject     string
	hue               int
	kind              chart.Kind
	roundTrips, rates map[int][]float64 // by size; several where several paths measured the same yardstick
}

// measured adds the results in runs to the chart: those of this library, of the peer, and of the
// yardsticks, each if it was measured. It sets the note of the chart, which has options of spec and
// the number of pairs. It returns nil.
func (d *benchDrawing) measured(spec bench.Spec, runs *bench.Comparison) error {
	common := spec
	common.Named, common.OneProcess = false, false
	d.facts = strings.Join(append(benchFacts(common), benchPairs(runs)...), ", ")
	named := ""
	if spec.Named {
		named = ", named"
	}
	for _, side := range []struct {
		kind    chart.Kind
		path    string
		results []*bench.Result
	}{{chart.Ours, pathName(spec), runs.A}, {chart.Peer, pathName(spec.ForPeer()), runs.B}} {
		if len(side.results) > 0 {
			r := side.results[0]
			d.line(side.path+named, fmt.Sprintf("%s (%s)", r.Subject, r.Dialect), side.kind).add(side.results)
		}
	}
	for _, y := range benchYardsticks(runs) {
		subject := y[0].Subject
		if n := y[0].Connections; n > 0 {
			subject += ", " + plural(n, "connection")
		}
		d.line("", subject, chart.Bound).add(y)
	}
	return nil
}

// absent does nothing and returns nil: a path without results is not drawn.
func (d *benchDrawing) absent(bench.Spec, error) error { return nil }

// line returns the series of d for the library or yardstick subject on path, and adds an empty one
// with that kind if there is none. For yardsticks path is "".
func (d *benchDrawing) line(path, subject string, kind chart.Kind) *benchSeries {
	for _, s := range d.series {
		if s.path == path && s.subject == subject {
			return s
		}
	}
	s := &benchSeries{path, subject, d.hue(path, kind), kind, map[int][]float64{}, map[int][]float64{}}
	d.series = append(d.series, s)
	return s
}

// hue returns the number of the colour for a new series. Libraries on the same path share a number,
// and every yardstick, which has the kind chart.Bound, gets a number that no other yardstick has.
func (d *benchDrawing) hue(path string, kind chart.Kind) int {
	next := 0
	for _, s := range d.series {
		switch {
		case (s.kind == chart.Bound) != (kind == chart.Bound):
			continue
		case s.path == path && kind != chart.Bound:
			return s.hue
		}
		next = max(next, s.hue+1)
	}
	return next
}

// add adds the median round trip and the median rate of results to the series. results are the runs
// of one library or yardstick with tensors of the same size, and must not be empty.
func (s *benchSeries) add(results []*bench.Result) {
	size := results[0].SizeBytes
	s.roundTrips[size] = append(s.roundTrips[size], bench.Median(results, bench.RTT))
	s.rates[size] = append(s.rates[size], bench.Median(results, bench.Bandwidth))
}

// chart returns a chart of all results, with a panel for round trips and one for the rate one way.
// Series of yardsticks come last, and values of 0, which were not measured, are not drawn. It sorts
// d.series.
func (d *benchDrawing) chart() *chart.Chart {
	c := &chart.Chart{
		Title: "Pipes between two processes", Note: d.facts,
		Size: "size of the tensor", Sizes: func(v float64) string { return byteSize(v).String() },
		Panels: []chart.Panel{
			{Title: "round trip, median", Values: micros, Log: true},
			{Title: "one way, 10^9 bytes per second", Values: func(v float64) string { return fmt.Sprintf("%.3g GB/s", v) }},
		},
	}
	bounds := func(s *benchSeries) int { return int(s.kind) / int(chart.Bound) }
	slices.SortStableFunc(d.series, func(a, b *benchSeries) int { return cmp.Compare(bounds(a), bounds(b)) })
	for _, s := range d.series {
		c.Series = append(c.Series, chart.Series{Name: strings.TrimPrefix(s.path+", "+s.subject, ", "), Hue: s.hue, Kind: s.kind, Lines: [][]chart.Point{points(s.roundTrips), points(s.rates)}})
	}
	return c
}

// points returns one point for each key of values, which is a size, ordered by size. The value of
// the point is the mean of the values of that size. A size whose values are all 0 gets no point.
func points(values map[int][]float64) (out []chart.Point) {
	for size, all := range values {
		sum := 0.0
		for _, v := range all {
			sum += v
		}
		if sum > 0 {
			out = append(out, chart.Point{Size: float64(size), Value: sum / float64(len(all))})
		}
	}
	slices.SortFunc(out, func(a, b chart.Point) int { return cmp.Compare(a.Size, b.Size) })
	return out
}
