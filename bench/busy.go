package bench

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Busy makes round trips on several pairs of processes at once, for a time, and
// returns what each pair saw: whoever spins must not do so at the expense of the
// others.
func (g Go) Busy(ctx context.Context, s Spec, pairs int, d time.Duration) ([]*Percentiles, error) {
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
		if err := errors.Join(clients[i].tell(j), clients[i].decode(&struct{}{})); err != nil {
			return nil, err
		}
	}
	for _, c := range clients {
		if err := c.tell("go"); err != nil {
			return nil, err
		}
	}
	out, errs := make([]*Percentiles, pairs), make([]error, pairs)
	var collecting sync.WaitGroup
	for i, c := range clients {
		collecting.Go(func() {
			var samples Samples
			errs[i] = c.decode(&samples)
			out[i] = percentiles(samples.RoundTrips)
		})
	}
	collecting.Wait()
	return out, errors.Join(errs...)
}
