package rpc

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Times summarizes the durations of calls: percentiles, and the calls per second of all callers
// together.
type Times struct {
	P50, P90, P99 time.Duration
	PerSecond     float64
}

// Sequential makes unmeasured calls, whose number is the argument warm, and then n measured ones,
// one after the other. It returns a summary of the durations of the measured ones. It stops at the
// first error and returns it. n must be at least 1.
func Sequential(ctx context.Context, warm, n int, call func(context.Context) error) (Times, error) {
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
	return Summarize(took, time.Since(begun)), nil
}

// alternate makes n calls of each function, one call after the other, a different function first in
// each round, after unmeasured rounds whose number is the argument warm. It returns the time that
// the measured calls of each function took together. It stops at the first error and returns it.
func alternate(ctx context.Context, warm, n int, calls ...func(context.Context) error) ([]time.Duration, error) {
	took := make([]time.Duration, len(calls))
	for round := range warm + n {
		for k := range calls {
			k = (k + round) % len(calls)
			start := time.Now()
			if err := calls[k](ctx); err != nil {
				return nil, err
			}
			if round >= warm {
				took[k] += time.Since(start)
			}
		}
	}
	return took, nil
}

// concurrent makes n calls on depth goroutines, each of which makes one call at a time, and returns
// a summary of their durations. A goroutine stops at its first error while the others go on.
// concurrent returns these errors joined; the summary is then meaningless. n must be at least 1.
func concurrent(ctx context.Context, depth, n int, call func(context.Context) error) (Times, error) {
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
	return Summarize(took, time.Since(begun)), errors.Join(errs...)
}

// Summarize returns the percentiles of the durations took, and the number of calls per second. all
// is the time that passed during all calls together. Summarize sorts took, which must not be empty.
func Summarize(took []time.Duration, all time.Duration) Times {
	slices.Sort(took)
	at := func(percent int) time.Duration { return took[(len(took)-1)*percent/100] }
	return Times{P50: at(50), P90: at(90), P99: at(99), PerSecond: float64(len(took)) / all.Seconds()}
}
