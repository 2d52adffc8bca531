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

// measured implements benchReport.
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

// absent implements benchReport. It does nothing: a path without results is not drawn.
func (d *benchDrawing) absent(bench.Spec, error) error { return nil }

// line returns the series of the library subject on a path. It adds a new series if there is none.
// Yardsticks have the path "".
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

// hue returns the colour number for a new series: that of another series of the same path, or a free
// one. Each yardstick (chart.Bound) gets its own number.
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

// add adds the medians of results, which have the same size, to the series.
func (s *benchSeries) add(results []*bench.Result) {
	size := results[0].SizeBytes
	s.roundTrips[size] = append(s.roundTrips[size], bench.Median(results, bench.RTT))
	s.rates[size] = append(s.rates[size], bench.Median(results, bench.Bandwidth))
}

// chart returns the chart of all results, with a panel for latency and one for bandwidth. Values of 0
// were not measured and are not drawn.
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

// points returns a point for each size of the map, ordered by size. The value of a point is the mean of
// the values of its size. Sizes whose values are all 0 are left out.
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
