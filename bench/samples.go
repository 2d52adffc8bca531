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

	// Which way the tensors of the round trips, and of the messages one way, went;
	// see Result. The C++ program does not say.
	TripRoute   string `json:"-"`
	OneWayRoute string `json:"-"`
}

// warmUps is the number of round trips, of n, that go before those that count.
func warmUps(n int) int { return min(n/10+1, 1000) }

// measure does all that the spec asks for.
func (c *client) measure() (Samples, error) {
	s := Samples{Messages: c.spec.OneWay}
	err := c.measureTrips(&s)
	if err == nil {
		err = c.measureOneWay(&s)
	}
	return s, err
}

func (c *client) measureTrips(s *Samples) (err error) {
	if n := c.spec.RoundTrips; n > 0 {
		_, _, err = c.roundTrips(warmUps(n), 0)
	}
	before := c.pipe.Stats()
	if n := c.spec.RoundTrips; n > 0 && err == nil {
		s.RoundTrips, s.TripCPU, err = c.roundTrips(n, 0)
	}
	if n := c.spec.ColdTrips; n > 0 && err == nil {
		s.ColdTrips, _, err = c.roundTrips(n, c.spec.Idle)
	}
	s.TripRoute = route(before, c.pipe.Stats(), c.tensors(2*(c.spec.RoundTrips+c.spec.ColdTrips)))
	return err
}

func (c *client) measureOneWay(s *Samples) (err error) {
	n := c.spec.OneWay
	if n == 0 {
		return nil
	}
	if _, _, err = c.oneWay(min(n, len(c.sent))); err != nil {
		return err
	}
	before := c.pipe.Stats()
	s.OneWay, s.CPU, err = c.oneWay(n)
	s.OneWayRoute = route(before, c.pipe.Stats(), c.tensors(n))
	return err
}

// tensors is how many there are in so many messages.
func (c *client) tensors(messages int) int {
	if c.spec.Size == 0 {
		return 0
	}
	return messages
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
