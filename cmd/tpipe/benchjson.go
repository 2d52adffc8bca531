package main

import "github.com/tensorpipe-go/tensorpipe/bench"

// benchRatios is the line behind those of the runs. All are this library's
// figure by the peer's; null where the peer has none.
type benchRatios struct {
	Subject    string   `json:"subject"` // both names
	Transport  string   `json:"transport"`
	Channel    string   `json:"channel"`
	Dialect    string   `json:"dialect"`
	SizeBytes  int      `json:"size_bytes"`
	Named      bool     `json:"named"`
	Depth      int      `json:"depth"`
	Pairs      int      `json:"pairs"`
	RTT        *float64 `json:"rtt_ratio"`
	Cold       *float64 `json:"rtt_cold_ratio"`
	CPUPerTrip *float64 `json:"rtt_cpu_ratio"`
	Rate       *float64 `json:"rate_ratio"` // one way
	CPU        *float64 `json:"cpu_ratio"`  // likewise
}

func newBenchRatios(runs *bench.Comparison) benchRatios {
	a, b := runs.A[0], runs.B[0]
	return benchRatios{
		Subject: a.Subject + "/" + b.Subject, Transport: a.Transport, Channel: a.Channel, Dialect: a.Dialect,
		SizeBytes: a.SizeBytes, Named: a.Named, Depth: a.Depth, Pairs: len(runs.A),
		RTT: some(runs.Ratio(bench.RTT)), Cold: some(runs.Ratio(bench.ColdRTT)), CPUPerTrip: some(runs.Ratio(bench.CPUPerTrip)),
		Rate: some(runs.Ratio(bench.Rate)), CPU: some(runs.Ratio(bench.CPUPerMessage)),
	}
}

func some(ratio float64) *float64 {
	if ratio == 0 {
		return nil
	}
	return &ratio
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
	return r.json.Encode(newBenchRatios(runs))
}
