package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/tensorpipe-go/tensorpipe/bench"
)

// benchReport prints results as they come.
type benchReport struct {
	out  io.Writer
	json *json.Encoder // nil: a table
	head string        // of the table that is being printed
}

func newBenchReport(out io.Writer, asJSON bool) *benchReport {
	r := &benchReport{out: out}
	if asJSON {
		r.json = json.NewEncoder(out)
	}
	return r
}

func (r *benchReport) print(spec bench.Spec, runs *bench.Comparison) error {
	if r.json != nil {
		return r.printJSON(runs)
	}
	r.printHead(spec, runs.A[0])
	size := byteSize(runs.A[0].SizeBytes).String()
	if len(runs.B) == 0 {
		r.printRow(size, "", runs.A)
		return nil
	}
	r.printRow(size, "here", runs.A)
	r.printRow("", runs.B[0].Subject, runs.B)
	r.printRatios(runs)
	return nil
}

// benchRatios is the line behind those of the runs. All are this library's
// figure by the peer's; null where the peer has none.
type benchRatios struct {
	Subject   string   `json:"subject"` // both names
	Transport string   `json:"transport"`
	Channel   string   `json:"channel"`
	Dialect   string   `json:"dialect"`
	SizeBytes int      `json:"size_bytes"`
	Pairs     int      `json:"pairs"`
	RTT       *float64 `json:"rtt_ratio"`
	Cold      *float64 `json:"rtt_cold_ratio"`
	Rate      *float64 `json:"rate_ratio"`
	CPU       *float64 `json:"cpu_ratio"`
}

func (r *benchReport) printJSON(runs *bench.Comparison) error {
	for i := range runs.A {
		if err := r.json.Encode(runs.A[i]); err != nil {
			return err
		}
		if len(runs.B) == 0 {
			continue
		}
		if err := r.json.Encode(runs.B[i]); err != nil {
			return err
		}
	}
	if len(runs.B) == 0 {
		return nil
	}
	a, b := runs.A[0], runs.B[0]
	return r.json.Encode(benchRatios{
		Subject: a.Subject + "/" + b.Subject, Transport: a.Transport, Channel: a.Channel, Dialect: a.Dialect,
		SizeBytes: a.SizeBytes, Pairs: len(runs.A),
		RTT: some(runs.Ratio(bench.RTT)), Cold: some(runs.Ratio(bench.ColdRTT)),
		Rate: some(runs.Ratio(bench.Rate)), CPU: some(runs.Ratio(cpuPerMessage)),
	})
}

func some(ratio float64) *float64 {
	if ratio == 0 {
		return nil
	}
	return &ratio
}

// cpuPerMessage is comparable also where there are no bytes.
func cpuPerMessage(r *bench.Result) float64 { return r.CPUSeconds / float64(max(r.Messages, 1)) }

func p90(r *bench.Result) float64 { return r.RTT.P90 }
func p99(r *bench.Result) float64 { return r.RTT.P99 }

// benchRow is a line of the table: the first two columns say what it is about.
const benchRow = "  %-10s %-14s %10s %10s %10s %10s %14s %14s\n"

// printHead starts a table where the path is not that of the rows before.
func (r *benchReport) printHead(spec bench.Spec, first *bench.Result) {
	head := fmt.Sprintf("transport %s, channel %s, %s dialect, %d in flight", first.Transport, first.Channel, first.Dialect, first.Depth)
	if spec.Named {
		head += ", target device named"
	}
	if spec.OneProcess {
		head += ", both ends in one process"
	}
	if head == r.head {
		return
	}
	if r.head != "" {
		fmt.Fprintln(r.out)
	}
	r.head = head
	fmt.Fprintln(r.out, head)
	fmt.Fprintf(r.out, benchRow, "size", "", "p50", "p90", "p99", "cold p50", "one way", "CPU")
}

// printRow prints the medians of one library's runs.
func (r *benchReport) printRow(size, who string, of []*bench.Result) {
	figure := func(f bench.Figure) float64 { return bench.Median(of, f) }
	fmt.Fprintf(r.out, benchRow, size, who,
		micros(figure(bench.RTT)), micros(figure(p90)), micros(figure(p99)), micros(figure(bench.ColdRTT)),
		oneWayRate(of[0].SizeBytes, figure), oneWayCPU(of[0].SizeBytes, figure))
}

// smallMessage is the size below which messages cost, rather than bytes.
const smallMessage = 64 << 10

func oneWayRate(size int, figure func(bench.Figure) float64) string {
	if size < smallMessage {
		return fmt.Sprintf("%.3g k/s", figure(bench.Rate)/1e3)
	}
	return fmt.Sprintf("%.3g GB/s", figure(bench.Bandwidth))
}

func oneWayCPU(size int, figure func(bench.Figure) float64) string {
	if size < smallMessage {
		return micros(figure(cpuPerMessage) * 1e6)
	}
	return fmt.Sprintf("%.3g s/GB", figure(bench.CPUPerGB))
}

func (r *benchReport) printRatios(runs *bench.Comparison) {
	ratio := func(f bench.Figure) string { return fmt.Sprintf("%.2f", runs.Ratio(f)) }
	fmt.Fprintf(r.out, benchRow, "", "ratio", ratio(bench.RTT), ratio(p90), ratio(p99), ratio(bench.ColdRTT), ratio(bench.Rate), ratio(cpuPerMessage))
}

func micros(us float64) string { return duration(time.Duration(us * 1e3)) }
