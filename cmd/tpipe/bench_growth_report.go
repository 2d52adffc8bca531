package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/chart"
)

// growthReport prints results of many pipes as a text table for each transport, and collects them for a
// chart.
type growthReport struct {
	out         io.Writer
	byProcesses bool // the results differ by the number of processes, and otherwise by that of pipes
	pairs       int  // of runs
	compared    bool // with a peer

	transport string // of the current table
	series    []*growthSeries
}

// growthSeries are the results of a library over a transport, by number.
type growthSeries struct {
	transport, subject string
	kind               chart.Kind
	results            map[int][]*bench.Growth
}

// add prints the lines of the results in c, and keeps them for the chart.
func (r *growthReport) add(s bench.GrowthSpec, c *bench.GrowthComparison) {
	r.heading(s)
	n := r.number(s)
	first := fmt.Sprint(n)
	for _, side := range []struct {
		subject string
		kind    chart.Kind
		results []*bench.Growth
		why     error
	}{{"here", chart.Ours, c.A, c.WhyA}, {bench.Libtensorpipe{}.Name(), chart.Peer, c.B, c.WhyB}} {
		switch {
		case side.why != nil:
			fmt.Fprintf(r.out, "%-9s %-13s  not measured: %s\n", first, side.subject, oneLine(side.why))
		case len(side.results) > 0:
			r.row(first, side.subject, func(f bench.GrowthFigure) string { return growthCell(f.Unit, f.Median(side.results)) })
			r.line(s.Transport, side.subject, side.kind).results[n] = side.results
		default:
			continue
		}
		first = ""
	}
	if len(c.A) > 0 && len(c.B) > 0 {
		r.row("", "ratio", func(f bench.GrowthFigure) string {
			if ratio := f.Ratio(c); ratio > 0 {
				return fmt.Sprintf("%.2g", ratio)
			}
			return "-"
		})
	}
}

// number returns the number of s by which results differ.
func (r *growthReport) number(s bench.GrowthSpec) int {
	if r.byProcesses {
		return s.Processes
	}
	return s.Pipes
}

// what returns the name of the numbers by which results differ.
func (r *growthReport) what() string {
	if r.byProcesses {
		return "processes"
	}
	return "pipes"
}

// facts returns how the results were measured, in one line.
func (r *growthReport) facts() string {
	facts := "pipes between two processes"
	if r.byProcesses {
		facts = "one process with a pipe to each of the others"
	}
	facts += ", tensors of 8 B"
	if r.compared {
		facts += ", medians of " + plural(r.pairs, "pair")
	}
	return facts
}

// heading begins a table if the transport of s is not that of the current one.
func (r *growthReport) heading(s bench.GrowthSpec) {
	if s.Transport == r.transport {
		return
	}
	if r.transport != "" {
		fmt.Fprintln(r.out)
	}
	r.transport = s.Transport
	fmt.Fprintf(r.out, "transport %s, %s\n", s.Transport, r.facts())
	r.row(r.what(), "", func(f bench.GrowthFigure) string { return f.Name })
}

// row prints a line of the table, with a cell for each figure.
func (r *growthReport) row(first, subject string, cell func(bench.GrowthFigure) string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%-9s %-13s", first, subject)
	for _, f := range bench.GrowthFigures() {
		fmt.Fprintf(&b, " %9s", cell(f))
	}
	fmt.Fprintln(r.out, b.String())
}

// growthCell returns a value of that unit as text.
func growthCell(unit bench.GrowthUnit, v float64) string {
	switch unit {
	case bench.GrowthBytes:
		return growthBytes(v)
	case bench.GrowthShare:
		if v >= 1 {
			return fmt.Sprintf("%.0f %%", 100*v)
		}
		return fmt.Sprintf("%.3g %%", 100*v)
	case bench.GrowthMicros:
		return micros(v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}

// growthTick returns a value of that unit as text for an axis, whose ticks are at round decimal numbers.
func growthTick(unit bench.GrowthUnit, v float64) string {
	switch {
	case unit == bench.GrowthBytes && v >= 1e6:
		return fmt.Sprintf("%.4g MB", v/1e6)
	case unit == bench.GrowthBytes:
		return fmt.Sprintf("%.4g kB", v/1e3)
	default:
		return growthCell(unit, v)
	}
}

// growthBytes returns v, a number of bytes that may be negative, as text with a unit.
func growthBytes(v float64) string {
	if v < 0 {
		return "-" + growthBytes(-v)
	}
	return byteSize(v).String()
}

// line returns the series of the library subject over transport, and adds an empty one if there is none.
func (r *growthReport) line(transport, subject string, kind chart.Kind) *growthSeries {
	for _, s := range r.series {
		if s.transport == transport && s.subject == subject {
			return s
		}
	}
	s := &growthSeries{transport, subject, kind, map[int][]*bench.Growth{}}
	r.series = append(r.series, s)
	return s
}

// chart returns a chart of all results, with a panel for each figure.
func (r *growthReport) chart() *chart.Chart {
	c := &chart.Chart{
		Title: "The cost of pipes by the number of " + r.what(), Columns: 3,
		Note: r.facts() + "; logarithmic axes have no 0, which is then not drawn",
		Size: r.what(), Sizes: func(v float64) string { return fmt.Sprintf("%.0f", v) },
	}
	figures := bench.GrowthFigures()
	for _, f := range figures {
		c.Panels = append(c.Panels, chart.Panel{
			Title: f.Title, Log: f.Unit != bench.GrowthCount, Values: func(v float64) string { return growthTick(f.Unit, v) },
		})
	}
	var transports []string
	for _, s := range r.series {
		if !slices.Contains(transports, s.transport) {
			transports = append(transports, s.transport)
		}
		lines := make([][]chart.Point, len(figures))
		for n, results := range s.results {
			for i, f := range figures {
				lines[i] = append(lines[i], chart.Point{Size: float64(n), Value: f.Median(results)})
			}
		}
		for _, points := range lines {
			slices.SortFunc(points, func(a, b chart.Point) int { return cmp.Compare(a.Size, b.Size) })
		}
		c.Series = append(c.Series, chart.Series{
			Name: s.transport + ", " + s.subject, Hue: slices.Index(transports, s.transport), Kind: s.kind, Lines: lines,
		})
	}
	return c
}
