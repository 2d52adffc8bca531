package bench

import (
	"slices"
	"time"
)

// Samples are what one measurement saw, before any sums.
type Samples struct {
	RoundTrips []time.Duration `json:"rtt_ns"`
	ColdTrips  []time.Duration `json:"cold_ns"`
	TripCPU    time.Duration   `json:"rtt_cpu_ns"` // of both processes, for all of RoundTrips
	OneWay     time.Duration   `json:"one_way_ns"` // for all messages
	CPU        time.Duration   `json:"cpu_ns"`     // of both processes in that time
	Messages   int             `json:"messages"`   // one way
}

// warmUps is the number of round trips, of n, that go before those that count.
func warmUps(n int) int { return min(n/10+1, 1000) }

// measure does all that the spec asks for.
func (c *client) measure() (Samples, error) {
	s := Samples{Messages: c.spec.OneWay}
	var err error
	if n := c.spec.RoundTrips; n > 0 {
		if _, _, err = c.roundTrips(warmUps(n), 0); err == nil {
			s.RoundTrips, s.TripCPU, err = c.roundTrips(n, 0)
		}
	}
	if n := c.spec.ColdTrips; n > 0 && err == nil {
		s.ColdTrips, _, err = c.roundTrips(n, c.spec.Idle)
	}
	if n := c.spec.OneWay; n > 0 && err == nil {
		if _, _, err = c.oneWay(min(n, len(c.sent))); err == nil {
			s.OneWay, s.CPU, err = c.oneWay(n)
		}
	}
	return s, err
}

// Percentiles are times in microseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// percentiles returns nil if there are no samples.
func percentiles(samples []time.Duration) *Percentiles {
	if len(samples) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(samples))
	at := func(percent int) float64 {
		rank := (len(sorted)*percent + 99) / 100
		return float64(sorted[max(rank, 1)-1].Nanoseconds()) / 1e3
	}
	return &Percentiles{P50: at(50), P90: at(90), P99: at(99)}
}
