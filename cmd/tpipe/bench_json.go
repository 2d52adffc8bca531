package main

import (
	"encoding/json"
	"io"

	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// benchRatios is the JSON line with the figures of one subject divided by those of the peer or of a
// yardstick, null where one of them has no figure. It follows the lines of the runs.
type benchRatios struct {
	Subject   string       `json:"subject"` // both names
	Transport string       `json:"transport"`
	Channel   string       `json:"channel"`
	Dialect   pipe.Dialect `json:"dialect"`

	// The path of the second subject, if that is the peer.
	PeerTransport string `json:"peer_transport,omitempty"`
	PeerChannel   string `json:"peer_channel,omitempty"`

	SizeBytes  int      `json:"size_bytes"`
	Named      bool     `json:"named"`
	Buffers    string   `json:"buffers"`
	Depth      int      `json:"depth"`
	Pairs      int      `json:"pairs"`
	RTT        *float64 `json:"rtt_ratio"`
	Cold       *float64 `json:"rtt_cold_ratio"`
	CPUPerTrip *float64 `json:"rtt_cpu_ratio"`
	Rate       *float64 `json:"rate_ratio"` // one way
	CPU        *float64 `json:"cpu_ratio"`  // likewise
}

// newBenchRatios returns the figures of one subject divided by those of another one. of has the
// results of the subject in the numerator and by those of the other, one for each pair of runs;
// neither may be empty. A ratio is nil if one of the two has no such figure.
func newBenchRatios(of, by []*bench.Result) benchRatios {
	a, b := of[0], by[0]
	ratio := func(f bench.Figure) *float64 {
		if r := bench.Ratio(of, by, f); r != 0 {
			return &r
		}
		return nil
	}
	return benchRatios{
		Subject: a.Subject + "/" + b.Subject, Transport: a.Transport, Channel: a.Channel, Dialect: a.Dialect,
		PeerTransport: b.Transport, PeerChannel: b.Channel,
		SizeBytes: a.SizeBytes, Named: a.Named, Buffers: a.Buffers, Depth: a.Depth, Pairs: len(of),
		RTT: ratio(bench.RTT), Cold: ratio(bench.ColdRTT), CPUPerTrip: ratio(bench.CPUPerTrip),
		Rate: ratio(bench.Rate), CPU: ratio(bench.CPUPerMessage),
	}
}

// benchAbsent is the JSON line for a library that cannot measure a path, with the reason.
type benchAbsent struct {
	Subject   string `json:"subject"`
	Transport string `json:"transport"`
	Channel   string `json:"channel"`
	SizeBytes *int   `json:"size_bytes,omitempty"` // absent: all sizes
	Why       string `json:"not_measured"`
}

// benchLines is the benchReport that prints results as JSON, one object per line.
type benchLines struct{ json *json.Encoder }

func newBenchLines(out io.Writer) *benchLines { return &benchLines{json.NewEncoder(out)} }

// measured prints one line of JSON for each run, in the order of the pairs, and then one with the
// ratios for each two subjects that are compared: the two libraries, and a library and a yardstick.
// A line with the reason follows for a library that could not be measured. measured stops at the
// first error of writing and returns it.
func (l *benchLines) measured(spec bench.Spec, runs *bench.Comparison) error {
	var lines []any
	sticks := benchYardsticks(runs)
	groups := append([][]*bench.Result{runs.A, runs.B}, sticks...)
	for i := range measuredRuns(runs) {
		for _, g := range groups {
			if i < len(g) {
				lines = append(lines, g[i])
			}
		}
	}
	if len(runs.A) > 0 && len(runs.B) > 0 {
		lines = append(lines, newBenchRatios(runs.A, runs.B))
	}
	for _, side := range [][]*bench.Result{runs.A, runs.B} {
		for _, y := range sticks {
			if len(side) > 0 && benchApplies(y[0].Subject, side) {
				lines = append(lines, newBenchRatios(side, y))
			}
		}
	}
	if runs.WhyA != nil {
		lines = append(lines, newBenchAbsent(bench.Go{}.Name(), spec, &spec.Size, runs.WhyA))
	}
	if runs.WhyB != nil {
		lines = append(lines, newBenchAbsent(bench.Libtensorpipe{}.Name(), spec.ForPeer(), &spec.Size, runs.WhyB))
	}
	return l.print(lines...)
}

// benchYardsticks returns the results in runs of each yardstick that was measured, in the order of
// bench.Yardsticks. Each inner list belongs to one yardstick, has one result for each pair of runs,
// and shares memory with runs.
func benchYardsticks(runs *bench.Comparison) (out [][]*bench.Result) {
	for _, y := range bench.Yardsticks(bench.Program{}) {
		if results := runs.Yardsticks[y.Name()]; len(results) > 0 {
			out = append(out, results)
		}
	}
	return out
}

// absent prints one line of JSON, with this library as the subject, the path of spec, and why, the
// reason why the path was not measured. It returns the error of writing.
func (l *benchLines) absent(spec bench.Spec, why error) error {
	return l.print(newBenchAbsent(bench.Go{}.Name(), spec, nil, why))
}

// newBenchAbsent returns the JSON line for subject, a library that cannot measure the path of spec,
// with the reason why. size is the size that was not measured, or nil for all sizes.
func newBenchAbsent(subject string, spec bench.Spec, size *int, why error) benchAbsent {
	return benchAbsent{subject, orAuto(spec.Transports), orAuto(spec.Channels), size, oneLine(why)}
}

// print writes each of lines as one line of JSON. It stops at the first error and returns it.
func (l *benchLines) print(lines ...any) error {
	for _, line := range lines {
		if err := l.json.Encode(line); err != nil {
			return err
		}
	}
	return nil
}
