package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// result is the output line of a job.
type result struct {
	What     string  `json:"what"`
	Over     string  `json:"over"`
	N        int     `json:"n"`
	P50      float64 `json:"p50_us"`
	P90      float64 `json:"p90_us"`
	P99      float64 `json:"p99_us"`
	PerS     float64 `json:"per_s"`
	CPU      float64 `json:"cpu_us"` // of both processes, per call
	BytesPer float64 `json:"bytes_per_s,omitempty"`
}

// measureAll starts a server process, measures each job, prints its result as a line of JSON to
// stdout, and stops the server. It stops at the first error and returns it, joined with that of
// stopping the server.
func measureAll(ctx context.Context, over string, jobs []job) (err error) {
	s, err := startServer(ctx, over)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	conn, err := connect(over, s.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	out := json.NewEncoder(os.Stdout)
	for _, j := range jobs {
		r, err := measure(ctx, conn, j)
		if err != nil {
			return err
		}
		r.Over = over
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

func measure(ctx context.Context, conn *grpc.ClientConn, j job) (result, error) {
	calls := make([]call, j.depth())
	for i := range calls {
		var err error
		if calls[i], err = j.newCall(ctx, conn); err != nil {
			return result{}, err
		}
	}
	if err := makeCalls(ctx, calls, make([]time.Duration, min(j.calls/10+1, 1000))); err != nil {
		return result{}, err
	}
	samples := make([]time.Duration, j.calls)
	before, err := cpuOfBoth(ctx, conn)
	if err != nil {
		return result{}, err
	}
	begin := time.Now()
	if err := makeCalls(ctx, calls, samples); err != nil {
		return result{}, err
	}
	took := time.Since(begin)
	after, err := cpuOfBoth(ctx, conn)
	return newResult(j, samples, took, after-before), err
}

// makeCalls makes len(samples) calls and sets the samples to their durations. calls has one element
// for each concurrent caller, which stops at its first error while others go on. makeCalls returns
// nil, or one of these errors; the samples then have no meaning.
func makeCalls(ctx context.Context, calls []call, samples []time.Duration) error {
	var (
		next    atomic.Int64
		callers sync.WaitGroup
		errs    = make([]error, len(calls))
	)
	for c, call := range calls {
		callers.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(samples)) && errs[c] == nil; i = next.Add(1) - 1 {
				begin := time.Now()
				errs[c] = call(ctx)
				samples[i] = time.Since(begin)
			}
		})
	}
	callers.Wait()
	return cmp.Or(errs...)
}

func newResult(j job, samples []time.Duration, took, cpu time.Duration) result {
	slices.Sort(samples)
	at := func(percent int) float64 {
		return microseconds(samples[max((len(samples)*percent+99)/100, 1)-1])
	}
	r := result{
		What: j.what(), N: j.calls, P50: at(50), P90: at(90), P99: at(99),
		PerS: float64(j.calls) / took.Seconds(), CPU: microseconds(cpu) / float64(j.calls),
	}
	if j.kind == kindBytes {
		r.BytesPer = r.PerS * float64(j.param)
	}
	return r
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
