package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// pingReport is the result of a ping, in its JSON form.
type pingReport struct {
	URL     string     `json:"url"`
	TLS     *identity  `json:"tls"` // null: no TLS
	Plan    *pipe.Plan `json:"plan"`
	Asked   int        `json:"asked"` // round trips
	Made    int        `json:"made"`
	Checked bool       `json:"checked"`        // every byte was compared
	Seed    uint64     `json:"seed,omitempty"` // if checked
	Size    int        `json:"size"`           // of a part; if checked, Size and Parts are upper bounds
	Parts   partCount  `json:"message"`
	Named   bool       `json:"named"`
	Sent    partCount  `json:"sent"` // in all round trips
	Bytes   int        `json:"bytes"`
	Latency *latency   `json:"latency_us"` // null if there was no trip
	GBps    float64    `json:"gb_per_s"`   // 10^9 bytes per second; each byte counts once
	Error   string     `json:"error,omitempty"`

	times []time.Duration
	total time.Duration
}

type partCount struct {
	Payloads int `json:"payloads"`
	Tensors  int `json:"tensors"`
}

// latency has percentiles of the durations of round trips, in microseconds.
type latency struct {
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// newPingReport returns a report with the flags of p and the path and peer of conn, without any
// round trip.
func newPingReport(p *ping, conn *pipe.Pipe) *pingReport {
	r := &pingReport{
		URL: p.to, TLS: identify(conn), Plan: conn.Plan(),
		Asked: p.count, Checked: p.check, Size: int(p.size), Named: p.named,
		Parts: partCount{p.payloads, p.tensors},
		times: make([]time.Duration, 0, p.count),
	}
	if p.check { // otherwise the shape of the messages does not depend on the seed
		r.Seed = p.seed
	}
	return r
}

// add adds a round trip to r: x is the exchange that was made, and took is the time that it needed.
func (r *pingReport) add(x *exchange, took time.Duration) {
	r.Made++
	r.Sent.Payloads += len(x.shape.Payloads)
	r.Sent.Tensors += len(x.shape.Tensors)
	r.Bytes += x.shape.Bytes()
	r.total += took
	r.times = append(r.times, took)
}

// finish computes the percentiles and the rate from the round trips that were added, if there were
// any. If err is not nil, it records err as the error that ended the round trips.
func (r *pingReport) finish(err error) {
	if err != nil {
		r.Error = err.Error()
	}
	if r.Made == 0 {
		return
	}
	r.GBps = gigabytesPerSecond(r.Bytes, r.total)
	slices.Sort(r.times)
	at := func(percent int) float64 { return float64(percentile(r.times, percent)) / 1e3 }
	r.Latency = &latency{Min: at(0), P50: at(50), P90: at(90), P99: at(99), Max: at(100)}
}

// percentile returns the smallest element of sorted for which at least the given percentage of all
// elements are equal or smaller. sorted is in ascending order and not empty. With percent 0 the
// result is the smallest element.
func percentile(sorted []time.Duration, percent int) time.Duration {
	rank := (len(sorted)*percent + 99) / 100
	return sorted[max(rank, 1)-1]
}

func (r *pingReport) print(w io.Writer) {
	if r.Checked {
		fmt.Fprintf(w, "%d of %d messages came back unchanged: %s, %s, %s (-seed %d)\n",
			r.Made, r.Asked, plural(r.Sent.Payloads, "payload"), plural(r.Sent.Tensors, "tensor"), byteSize(r.Bytes), r.Seed)
	} else {
		fmt.Fprintf(w, "%d of %d round trips of %s\n", r.Made, r.Asked, r.message())
	}
	if r.Made == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "  p50\tp90\tp99\tmin\tmax\trate")
	var cells []string
	for _, us := range []float64{r.Latency.P50, r.Latency.P90, r.Latency.P99, r.Latency.Min, r.Latency.Max} {
		cells = append(cells, duration(time.Duration(us*1e3)))
	}
	fmt.Fprintln(t, "  "+strings.Join(append(cells, rate(r.Bytes, r.total)), "\t"))
	t.Flush()
}

// message returns a description of one message that was sent, such as "1 tensor of 64 KiB", or
// "empty messages".
func (r *pingReport) message() string {
	var parts []string
	if n := r.Parts.Payloads; n > 0 {
		parts = append(parts, plural(n, "payload"))
	}
	if n := r.Parts.Tensors; n > 0 {
		parts = append(parts, plural(n, "tensor"))
	}
	if len(parts) == 0 {
		return "empty messages"
	}
	text := strings.Join(parts, " and ") + " of " + byteSize(r.Size).String()
	if r.Named && r.Parts.Tensors > 0 {
		text += ", target device named"
	}
	return text
}
