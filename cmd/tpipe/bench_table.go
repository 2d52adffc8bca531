package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// benchTable is the benchReport that prints results as text tables, with a new table where the heading
// changes.
type benchTable struct {
	out  io.Writer
	head string // heading of the current table
}

// measured prints one line of the table for each library that was measured and, if both were, a
// line with the ratios. If the heading differs from that of the current table, it first begins a
// new table. It returns nil and ignores errors of writing.
func (t *benchTable) measured(spec bench.Spec, runs *bench.Comparison) error {
	first := measuredRuns(runs)[0]
	columns := benchColumns{spec: spec, runs: runs, alone: benchWithoutPeer(runs)}
	if head := benchHead(spec, runs); head != t.head {
		t.section(head)
		fmt.Fprintln(t.out, columns.line("size", "", columns.heads()...))
	}
	size := byteSize(first.SizeBytes).String()
	if len(runs.A) > 0 {
		fmt.Fprintln(t.out, columns.row(size, "here", runs.A))
		size = ""
	}
	if len(runs.B) > 0 {
		fmt.Fprintln(t.out, columns.row(size, runs.B[0].Subject, runs.B))
	}
	if len(runs.A) > 0 && len(runs.B) > 0 {
		ratio := func(f bench.Figure) string { return fmt.Sprintf("%.2f", runs.Ratio(f)) }
		fmt.Fprintln(t.out, columns.line("", "ratio", ratio(bench.RTT), ratio(p90), ratio(p99), ratio(bench.ColdRTT), ratio(bench.CPUPerTrip), ratio(bench.Rate), ratio(bench.CPUPerMessage)))
	}
	return nil
}

// absent prints a heading with the path of spec and the reason why it was not measured, without a
// table. It returns nil and ignores errors of writing.
func (t *benchTable) absent(spec bench.Spec, why error) error {
	t.section(fmt.Sprintf("transport %s, channel %s: not measured: %s", orAuto(spec.Transports), orAuto(spec.Channels), oneLine(why)))
	return nil
}

// section prints head and stores it as the heading of the current table. It prints an empty line
// before every heading but the first.
func (t *benchTable) section(head string) {
	if t.head != "" {
		fmt.Fprintln(t.out)
	}
	t.head = head
	fmt.Fprintln(t.out, head)
}

// measuredRuns returns the results of this library in runs or, if this library was not measured,
// those of the peer. The result shares memory with runs.
func measuredRuns(runs *bench.Comparison) []*bench.Result {
	if len(runs.A) > 0 {
		return runs.A
	}
	return runs.B
}

// benchHead returns the heading of a table: the path, the dialect and the options, which all rows
// of the table have in common. For a library that could not be measured, a line with the reason
// follows. runs must have results.
func benchHead(spec bench.Spec, runs *bench.Comparison) string {
	first := measuredRuns(runs)[0]
	path := fmt.Sprintf("transport %s, channel %s", first.Transport, first.Channel)
	if len(spec.Transports) == 0 || len(spec.Channels) == 0 {
		path = pathName(spec) + ": " + path
	}
	facts := append([]string{path + benchLanes(first), string(first.Dialect) + " dialect"}, benchFacts(spec)...)
	if first.Congestion != "" {
		facts = append(facts, "congestion control "+first.Congestion)
	}
	facts = append(facts, benchPairs(runs)...)
	if len(runs.A) > 0 && len(runs.B) > 0 {
		if peer := runs.B[0]; peer.Transport != first.Transport || peer.Channel != first.Channel {
			facts = append(facts, fmt.Sprintf("%s on transport %s, channel %s%s", peer.Subject, peer.Transport, peer.Channel, benchLanes(peer)))
		}
	}
	return strings.Join(facts, ", ") + without("this library", runs.WhyA) + without(bench.Libtensorpipe{}.Name(), runs.WhyB)
}

// benchPairs returns nil if no peer was to be measured. Otherwise it returns one text, such as
// "medians of 5 pairs", with the number of pairs of runs in runs.
func benchPairs(runs *bench.Comparison) []string {
	if benchWithoutPeer(runs) {
		return nil
	}
	return []string{"medians of " + plural(len(measuredRuns(runs)), "pair")}
}

// benchLanes returns a text with the largest number of lanes of r's channel, such as " with up to 4
// lanes", or "" if the channel has no lanes.
func benchLanes(r *bench.Result) string {
	if r.Connections == 0 {
		return ""
	}
	return " with up to " + plural(r.Connections, "lane")
}

// benchWithoutPeer reports whether no peer was to be measured: runs has neither results of a peer
// nor a reason why the peer has none.
func benchWithoutPeer(runs *bench.Comparison) bool { return len(runs.B) == 0 && runs.WhyB == nil }

// without returns a line break and a line which states that subject, a library, was not measured
// for the reason why. It returns "" if why is nil.
func without(subject string, why error) string {
	if why == nil {
		return ""
	}
	return "\nwithout " + subject + ": " + oneLine(why)
}

// benchFacts returns a text for each option of spec that a heading shows: always the number of
// messages in flight and the buffers, and any other option if it differs from its default. Path and
// size are not among them.
func benchFacts(spec bench.Spec) []string {
	facts := []string{fmt.Sprint(spec.Depth, " in flight"), spec.Buffers + " buffers"}
	if !spec.Device.IsZero() {
		facts[1] = "memory of " + deviceNames(slices.Compact([]device.Device{spec.Device, spec.ServerDevice}))
	}
	if spec.Data != "" && spec.Data != bench.DataPattern {
		facts = append(facts, "tensors of "+spec.Data)
	}
	if spec.Compression != pipe.CompressionNone {
		facts = append(facts, "compressed by "+spec.Compression.String())
	}
	if spec.Named {
		facts = append(facts, "target device named")
	}
	if spec.NoSpin {
		facts = append(facts, "no spinning")
	}
	if spec.BusyPolling {
		facts = append(facts, "busy polling")
	}
	if spec.NoEager {
		facts = append(facts, "no eager transfers")
	}
	if spec.OneProcess {
		facts = append(facts, "both ends in one process")
	}
	return facts
}

// benchColumns formats the table lines of one spec.
type benchColumns struct {
	spec  bench.Spec
	runs  *bench.Comparison
	alone bool // no peer is measured
}

// benchWidths are the widths of the columns after the size and the subject. benchGPUWidths are those for
// tensors on GPUs.
var (
	benchWidths    = []int{9, 9, 9, 9, 9, 11, 10, 12, 6, 12, 8, 8}
	benchGPUWidths = []int{9, 9, 9, 9, 9, 9, 11, 10, 12, 10}
)

// onGPU reports whether the tensors are on GPUs.
func (c benchColumns) onGPU() bool { return !c.spec.Device.IsZero() }

// heads returns the headings of the columns after the size and the subject.
func (c benchColumns) heads() []string {
	if c.onGPU() {
		return []string{"p50", "p90", "p99", "cold p50", "CPU", "hand-over", "one way", "CPU", "of copy", "via"}
	}
	return append([]string{"p50", "p90", "p99", "cold p50", "CPU", "one way", "CPU", "of memcpy", "CPU", "of TCP", "via"}, c.wire("wire")...)
}

// line returns a line of the table with the given cells, each padded to the width of its column. It
// leaves out subject, the name of the library, if no peer is measured. The line has no line break.
func (c benchColumns) line(size, subject string, cells ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %-8s", size)
	if !c.alone {
		fmt.Fprintf(&b, " %-13s", subject)
	}
	widths := benchWidths
	if c.onGPU() {
		widths = benchGPUWidths
	}
	for i, cell := range cells {
		fmt.Fprintf(&b, " %*s", widths[i], cell)
	}
	return b.String()
}

// wire returns a list with text as the only cell, for the column "wire", or nil if tensors are not
// compressed and there is no such column.
func (c benchColumns) wire(text string) []string {
	if c.spec.Compression == pipe.CompressionNone {
		return nil
	}
	return []string{text}
}

// row returns the line of the table with the medians of results, the runs of one library. The first
// cells are size and subject. results must not be empty.
func (c benchColumns) row(size, subject string, results []*bench.Result) string {
	figure := func(f bench.Figure) float64 { return bench.Median(results, f) }
	rate, cpu := oneWay(results[0].SizeBytes, figure)
	cells := []string{micros(figure(bench.RTT)), micros(figure(p90)), micros(figure(p99)), micros(figure(bench.ColdRTT)), micros(figure(bench.CPUPerTrip))}
	if c.onGPU() {
		return c.line(size, subject, append(cells, micros(figure(bench.HandOver)), rate, cpu, c.share(results, bench.DeviceCopy{}), via(results[0]))...)
	}
	cells = append(cells,
		rate, cpu,
		c.share(results, bench.Memcpy{}), c.memcpyCPU(results), c.share(results, bench.TCP{}), via(results[0]),
	)
	return c.line(size, subject, append(cells, c.wire(fmt.Sprintf("%.3g %%", 100*results[0].WireShare))...)...)
}

// via returns the cell of the column "via": the route of the tensors in round trips and, if the
// tensors of one-way messages took another route, a slash and that route. If only one of the two
// routes is known it returns that one, and "-" if none is.
func via(r *bench.Result) string {
	if r.TripRoute == r.OneWayRoute || r.TripRoute == "" || r.OneWayRoute == "" {
		return cmp.Or(r.TripRoute, r.OneWayRoute, "-")
	}
	return r.TripRoute + "/" + r.OneWayRoute
}

// benchApplies reports whether the yardstick with that name may be compared with results, the runs
// of one library. The one for plain TCP applies only to tensors that were sent over TCP; all others
// always apply.
func benchApplies(yardstick string, results []*bench.Result) bool {
	var tcp bench.TCP
	return yardstick != tcp.Name() || tcp.Carries(results[0])
}

// share returns a cell that compares results, the runs of one library, with the yardstick y, such
// as "0.95 (4.2)": the library's rate divided by the yardstick's, and the yardstick's rate in GB/s.
// It returns "-" if y was not measured or does not apply.
func (c benchColumns) share(results []*bench.Result, y bench.Yardstick) string {
	measured := c.runs.Yardsticks[y.Name()]
	if len(measured) == 0 || !benchApplies(y.Name(), results) {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.3g)", bench.Ratio(results, measured, bench.Bandwidth), bench.Median(measured, bench.Bandwidth))
}

// memcpyCPU returns a cell with the CPU time of results, the runs of one library, divided by the
// CPU time of a copy of the same bytes in memory. It returns "-" if the copy was not measured.
func (c benchColumns) memcpyCPU(results []*bench.Result) string {
	times := bench.Ratio(results, c.runs.Yardsticks[bench.Memcpy{}.Name()], bench.CPUPerMessage)
	if times == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3g", times)
}

// p90 returns the 90th percentile of the round trips of r, cold ones excluded. p99 returns the
// 99th. Both have the type of a bench.Figure.
func p90(r *bench.Result) float64 { return r.RTT.P90 }
func p99(r *bench.Result) float64 { return r.RTT.P99 }

// smallMessage is the size below which rates are messages per second and not bytes per second.
const smallMessage = 64 << 10

// oneWay returns the cells with the rate and the CPU time of one-way messages of size bytes. figure
// returns the median of a bench.Figure. From 64 KiB on the cells count bytes, as in "4.2 GB/s" and
// "0.3 s/GB". Below, they count messages, as in "250 k/s" and "4 us".
func oneWay(size int, figure func(bench.Figure) float64) (rate, cpu string) {
	if size >= smallMessage {
		return fmt.Sprintf("%.3g GB/s", figure(bench.Bandwidth)), fmt.Sprintf("%.3g s/GB", figure(bench.CPUPerGB))
	}
	cpu = micros(figure(bench.CPUPerMessage))
	if perSecond := figure(bench.Rate); perSecond >= 1e6 {
		return fmt.Sprintf("%.3g M/s", perSecond/1e6), cpu
	}
	return fmt.Sprintf("%.3g k/s", figure(bench.Rate)/1e3), cpu
}

// micros returns us, a number of microseconds, as text with a unit: us, ms or s.
func micros(us float64) string { return duration(time.Duration(us * 1e3)) }
