package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/chart"
)

// benchDrawing draws results into a file when all have come.
type benchDrawing struct {
	file  *os.File
	fresh bool // there was no such file

	facts  string
	series []*benchSeries
}

// benchSeries is a line of the chart.
type benchSeries struct {
	path, who    string
	hue          int
	kind         chart.Kind
	trips, rates map[int][]float64 // by size; several where several paths measured the same yardstick
}

// newBenchDrawing makes sure that the file can be written, before much time is
// spent. A file that exists stays as it is until the drawing is finished.
func newBenchDrawing(path string) (*benchDrawing, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("-svg: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("-svg: %w", err)
	}
	return &benchDrawing{file: f, fresh: info.Size() == 0}, nil
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
			d.line(side.path+named, r.Subject+" ("+r.Dialect+")", side.kind).add(side.results)
		}
	}
	for _, y := range benchYardsticks(runs) {
		who := y[0].Subject
		if n := y[0].Connections; n > 0 {
			who += ", " + plural(n, "connection")
		}
		d.line("", who, chart.Bound).add(y)
	}
	return nil
}

// absent implements benchReport: there is nothing to draw.
func (d *benchDrawing) absent(bench.Spec, error) error { return nil }

// line finds the line of a library on a path, or begins it.
func (d *benchDrawing) line(path, who string, kind chart.Kind) *benchSeries {
	for _, s := range d.series {
		if s.path == path && s.who == who {
			return s
		}
	}
	s := &benchSeries{path, who, d.hue(path, kind), kind, map[int][]float64{}, map[int][]float64{}}
	d.series = append(d.series, s)
	return s
}

// hue is the same for the lines of a path, and another one for each yardstick.
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

func (s *benchSeries) add(results []*bench.Result) {
	size := results[0].SizeBytes
	s.trips[size] = append(s.trips[size], bench.Median(results, bench.RTT))
	s.rates[size] = append(s.rates[size], bench.Median(results, bench.Bandwidth))
}

// chart has a panel for latency and one for bandwidth. A value of 0 was not
// measured.
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
		c.Series = append(c.Series, chart.Series{Name: strings.TrimPrefix(s.path+", "+s.who, ", "), Hue: s.hue, Kind: s.kind, Lines: [][]chart.Point{points(s.trips), points(s.rates)}})
	}
	return c
}

// points are the means of what was measured, by size.
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

// finish writes the file. It may be called on a drawing that is nil.
func (d *benchDrawing) finish() error {
	if d == nil {
		return nil
	}
	err := d.file.Truncate(0)
	if err == nil {
		_, err = d.chart().WriteTo(d.file)
	}
	if err := cmp.Or(err, d.file.Close()); err != nil {
		return fmt.Errorf("-svg: %w", err)
	}
	return nil
}

// discard leaves no empty file behind. It may be called on a drawing that is nil.
func (d *benchDrawing) discard() {
	if d == nil {
		return
	}
	_ = d.file.Close()
	if d.fresh {
		_ = os.Remove(d.file.Name())
	}
}
