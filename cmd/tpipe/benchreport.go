package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/pipe"
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
	size := byteSize(runs.A[0].SizeBytes).String()
	if len(runs.B) == 0 {
		r.printHead(benchHead(spec, runs), "", wireColumn(spec, "wire"))
		return r.printRow(size, "", runs.A, wireColumn(spec, fmt.Sprintf("%.3g %%", 100*runs.A[0].WireShare)))
	}
	r.printHead(benchHead(spec, runs), benchWho, "")
	if err := r.printRow(size, fmt.Sprintf(benchWho, "here"), runs.A, ""); err != nil {
		return err
	}
	if err := r.printRow("", fmt.Sprintf(benchWho, runs.B[0].Subject), runs.B, ""); err != nil {
		return err
	}
	return r.printRatios(runs)
}

const (
	// benchRow is a line of the table. The second column is there only where
	// two libraries are compared, and the last has a form of its own.
	benchRow = "  %-8s%s %9s %9s %9s %9s %9s %11s %10s%s\n"
	benchWho = " %-13s"

	// benchWire is the last column, there only where tensors are compressed.
	benchWire = " %9s"
)

// benchHead says what the rows of a table have in common.
func benchHead(spec bench.Spec, runs *bench.Comparison) string {
	first := runs.A[0]
	head := fmt.Sprintf("transport %s, channel %s, %s dialect, %d in flight", first.Transport, first.Channel, first.Dialect, first.Depth)
	if spec.Data != "" && spec.Data != bench.DataPattern {
		head += ", tensors of " + spec.Data
	}
	if spec.Compression != pipe.CompressionNone {
		head += ", compressed by " + spec.Compression.String()
	}
	if spec.Named {
		head += ", target device named"
	}
	if spec.NoSpin {
		head += ", no spinning"
	}
	if spec.OneProcess {
		head += ", both ends in one process"
	}
	if first.Congestion != "" {
		head += ", congestion control " + first.Congestion
	}
	if len(runs.B) > 0 {
		head += ", medians of " + plural(len(runs.A), "pair")
	}
	return head
}

// printHead starts a table where the rows have something else in common than
// those before.
func (r *benchReport) printHead(head, who, wire string) {
	if head == r.head {
		return
	}
	if r.head != "" {
		fmt.Fprintln(r.out)
	}
	r.head = head
	fmt.Fprintln(r.out, head)
	if who != "" {
		who = fmt.Sprintf(who, "")
	}
	fmt.Fprintf(r.out, benchRow, "size", who, "p50", "p90", "p99", "cold p50", "CPU", "one way", "CPU", wire)
}

func p90(r *bench.Result) float64 { return r.RTT.P90 }
func p99(r *bench.Result) float64 { return r.RTT.P99 }

// wireColumn is text in the last column, if the table has that.
func wireColumn(spec bench.Spec, text string) string {
	if spec.Compression == pipe.CompressionNone {
		return ""
	}
	return fmt.Sprintf(benchWire, text)
}

// printRow prints the medians of one library's runs.
func (r *benchReport) printRow(size, who string, of []*bench.Result, wire string) error {
	figure := func(f bench.Figure) float64 { return bench.Median(of, f) }
	_, err := fmt.Fprintf(r.out, benchRow, size, who,
		micros(figure(bench.RTT)), micros(figure(p90)), micros(figure(p99)), micros(figure(bench.ColdRTT)), micros(figure(bench.CPUPerTrip)),
		oneWayRate(of[0].SizeBytes, figure), oneWayCPU(of[0].SizeBytes, figure), wire)
	return err
}

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

func (r *benchReport) printRatios(runs *bench.Comparison) error {
	ratio := func(f bench.Figure) string { return fmt.Sprintf("%.2f", runs.Ratio(f)) }
	_, err := fmt.Fprintf(r.out, benchRow, "", fmt.Sprintf(benchWho, "ratio"),
		ratio(bench.RTT), ratio(p90), ratio(p99), ratio(bench.ColdRTT), ratio(bench.CPUPerTrip), ratio(bench.Rate), ratio(bench.CPUPerMessage), "")
	return err
}

func micros(us float64) string { return duration(time.Duration(us * 1e3)) }
