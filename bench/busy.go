package bench

import (
	"context"
	"errors"
	"sync"
	"time"
)

// BusyPair is what one of several pairs of processes saw.
type BusyPair struct {
	RTT            *Percentiles
	TripsPerSecond float64 // which the slowest trips count in, too
}

// Busy makes round trips on several pairs of processes at once, for a time:
// whoever spins must not do so at the expense of the others.
func (g Go) Busy(ctx context.Context, s Spec, pairs int, d time.Duration) ([]BusyPair, error) {
	clients := make([]*process, pairs)
	for i := range pairs {
		server, err := g.start(ctx, s)
		if err != nil {
			return nil, err
		}
		defer server.stop()
		if clients[i], err = startProcess(ctx, "bench client", g.Child); err != nil {
			return nil, err
		}
		defer clients[i].end()
		j := job{Role: roleTrips, Spec: s, URL: server.url, For: d}
		if err := clients[i].ask(j, &struct{}{}); err != nil {
			return nil, err
		}
	}
	for _, c := range clients {
		if err := c.tell("go"); err != nil {
			return nil, err
		}
	}
	out, errs := make([]BusyPair, pairs), make([]error, pairs)
	var collecting sync.WaitGroup
	for i, c := range clients {
		collecting.Go(func() {
			var samples Samples
			errs[i] = c.decode(&samples)
			out[i] = newBusyPair(samples.RoundTrips)
		})
	}
	collecting.Wait()
	return out, errors.Join(errs...)
}

func newBusyPair(samples []time.Duration) BusyPair {
	var total time.Duration
	for _, d := range samples {
		total += d
	}
	return BusyPair{RTT: percentiles(samples), TripsPerSecond: float64(len(samples)) / max(total, 1).Seconds()}
}
