package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// benchColumns are the lines of a table about one spec.
type benchColumns struct {
	spec  bench.Spec
	runs  *bench.Comparison
	alone bool // there is no peer
}

// benchWidths are the widths of the columns that all tables have, behind the
// first ones.
var benchWidths = []int{9, 9, 9, 9, 9, 11, 10, 12, 6, 12, 8, 8}

// line joins the cells of a line. Who is said only where two libraries are
// compared.
func (c benchColumns) line(size, who string, cells ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %-8s", size)
	if !c.alone {
		fmt.Fprintf(&b, " %-13s", who)
	}
	for i, cell := range cells {
		fmt.Fprintf(&b, " %*s", benchWidths[i], cell)
	}
	return b.String()
}

func (c benchColumns) heads() string {
	return c.line("size", "", append([]string{"p50", "p90", "p99", "cold p50", "CPU", "one way", "CPU", "of memcpy", "CPU", "of TCP", "via"}, c.wire("wire")...)...)
}

// wire is the last cell, which is there only where tensors are compressed.
func (c benchColumns) wire(text string) []string {
	if c.spec.Compression == pipe.CompressionNone {
		return nil
	}
	return []string{text}
}

// row has the medians of one library.
func (c benchColumns) row(size, who string, of []*bench.Result) string {
	figure := func(f bench.Figure) float64 { return bench.Median(of, f) }
	cells := []string{
		micros(figure(bench.RTT)), micros(figure(p90)), micros(figure(p99)), micros(figure(bench.ColdRTT)), micros(figure(bench.CPUPerTrip)),
		oneWayRate(of[0].SizeBytes, figure), oneWayCPU(of[0].SizeBytes, figure),
		c.share(of, bench.Memcpy{}), c.memcpyCPU(of), c.share(of, bench.TCP{}), via(of[0]),
	}
	return c.line(size, who, append(cells, c.wire(fmt.Sprintf("%.3g %%", 100*of[0].WireShare))...)...)
}

// via is the way that the tensors took in the round trips, and behind a stroke that
// one way, where it is another.
func via(r *bench.Result) string {
	if r.TripRoute == r.OneWayRoute || r.TripRoute == "" || r.OneWayRoute == "" {
		return cmp.Or(r.TripRoute, r.OneWayRoute, "-")
	}
	return r.TripRoute + "/" + r.OneWayRoute
}

// benchFits is false of plain connections for the one of two libraries whose tensors
// took none.
func benchFits(yardstick string, of []*bench.Result) bool {
	var tcp bench.TCP
	return yardstick != tcp.Name() || tcp.Carries(of[0])
}

// share is the part that a library has of the rate of a yardstick, and that rate.
func (c benchColumns) share(of []*bench.Result, y bench.Yardstick) string {
	results := c.runs.Yardsticks[y.Name()]
	if len(results) == 0 || !benchFits(y.Name(), of) {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.3g)", bench.Ratio(of, results, bench.Bandwidth), bench.Median(results, bench.Bandwidth))
}

// memcpyCPU is how many times the processor time of a copy a library takes for the
// same bytes.
func (c benchColumns) memcpyCPU(of []*bench.Result) string {
	times := bench.Ratio(of, c.runs.Yardsticks[bench.Memcpy{}.Name()], bench.CPUPerMessage)
	if times == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3g", times)
}

func (c benchColumns) ratios() string {
	ratio := func(f bench.Figure) string { return fmt.Sprintf("%.2f", c.runs.Ratio(f)) }
	return c.line("", "ratio", ratio(bench.RTT), ratio(p90), ratio(p99), ratio(bench.ColdRTT), ratio(bench.CPUPerTrip), ratio(bench.Rate), ratio(bench.CPUPerMessage))
}

func p90(r *bench.Result) float64 { return r.RTT.P90 }
func p99(r *bench.Result) float64 { return r.RTT.P99 }

// smallMessage is the size below which messages cost, rather than bytes.
const smallMessage = 64 << 10

func oneWayRate(size int, figure func(bench.Figure) float64) string {
	perSecond := figure(bench.Rate)
	switch {
	case size >= smallMessage:
		return fmt.Sprintf("%.3g GB/s", figure(bench.Bandwidth))
	case perSecond >= 1e6:
		return fmt.Sprintf("%.3g M/s", perSecond/1e6)
	default:
		return fmt.Sprintf("%.3g k/s", perSecond/1e3)
	}
}

func oneWayCPU(size int, figure func(bench.Figure) float64) string {
	if size < smallMessage {
		return micros(figure(bench.CPUPerMessage))
	}
	return fmt.Sprintf("%.3g s/GB", figure(bench.CPUPerGB))
}

func micros(us float64) string { return duration(time.Duration(us * 1e3)) }
