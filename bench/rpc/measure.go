package rpc

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Times is what n calls took.
type Times struct {
	P50, P90, P99 time.Duration
	PerSecond     float64
}

// one calls one behind the other, some of them before it counts.
func one(ctx context.Context, warm, n int, call func(context.Context) error) (Times, error) {
	for range warm {
		if err := call(ctx); err != nil {
			return Times{}, err
		}
	}
	took := make([]time.Duration, n)
	begun := time.Now()
	for i := range took {
		start := time.Now()
		if err := call(ctx); err != nil {
			return Times{}, err
		}
		took[i] = time.Since(start)
	}
	return summed(took, time.Since(begun)), nil
}

// many keeps as many calls in flight as depth says.
func many(ctx context.Context, depth, n int, call func(context.Context) error) (Times, error) {
	took := make([]time.Duration, n)
	errs := make([]error, depth)
	var next atomic.Int64
	var callers sync.WaitGroup
	begun := time.Now()
	for c := range depth {
		callers.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				start := time.Now()
				if errs[c] = call(ctx); errs[c] != nil {
					return
				}
				took[i] = time.Since(start)
			}
		})
	}
	callers.Wait()
	return summed(took, time.Since(begun)), errors.Join(errs...)
}

func summed(took []time.Duration, all time.Duration) Times {
	slices.Sort(took)
	at := func(percent int) time.Duration { return took[(len(took)-1)*percent/100] }
	return Times{P50: at(50), P90: at(90), P99: at(99), PerSecond: float64(len(took)) / all.Seconds()}
}
