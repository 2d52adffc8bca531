package rref

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/bench/rpc"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// The worker that owns the values of Create, and how many creations are under way at most.
const (
	ownerOfMany = "worker0"
	atOnce      = 64
)

// create is the function of Create. It measures when all references are confirmed. The error is that
// of a creation, or the cause of ctx.
func (w *worker) create(ctx context.Context, n int) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := agent.FromContext(ctx)
	w.kept = make([]*rref.Ref[int], n)
	before := footprint()
	for i := range w.kept {
		w.kept[i] = rref.Remote(ctx, a, ownerOfMany, Identity, i)
		if i%atOnce == 0 || i == n-1 { // waiting for each would keep a channel for each
			if _, err := w.kept[i].Created().Wait(ctx); err != nil {
				return 0, err
			}
		}
	}
	if err := poll(ctx, func() (bool, error) { return w.refs.Metrics()["pending_users"] == 0, nil }); err != nil {
		return 0, err
	}
	return footprint() - before, nil
}

// Dropped is the result of Drop: how long Release of all references took, how long it then took until
// the owner had no value any more, since the first Release, and the calls that were made to the owner
// during that time.
type Dropped struct {
	Release, Gone time.Duration
	Calls         rpc.Times
}

// drop is the function of Drop. The error is that of a call to the owner, or the cause of ctx.
func (w *worker) drop(ctx context.Context, _ agent.None) (Dropped, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := agent.FromContext(ctx)
	var calling sync.WaitGroup
	var gone atomic.Bool
	var took []time.Duration
	var failed error
	calling.Go(func() { took, failed = callUntil(ctx, a, &gone) })
	var d Dropped
	begun := time.Now()
	err := releaseAll(ctx, w.kept)
	w.kept = nil
	d.Release = time.Since(begun)
	if err == nil {
		err = poll(ctx, func() (bool, error) {
			n, err := Values.Call(ctx, a, ownerOfMany, agent.None{})
			return n == 0, err
		})
	}
	d.Gone = time.Since(begun)
	gone.Store(true)
	calling.Wait()
	if len(took) > 0 {
		d.Calls = rpc.Summarize(took, d.Gone)
	}
	return d, errors.Join(err, failed)
}

// callUntil calls aten::add at the owner, one call after the other and at least one, until done is
// set, and returns the durations of the calls. It stops at the first error and returns it.
func callUntil(ctx context.Context, a *agent.Agent, done *atomic.Bool) (took []time.Duration, err error) {
	x, err := tensor.Zeros(tensor.F32, 2, 2)
	if err != nil {
		return nil, err
	}
	for first := true; first || !done.Load(); first = false {
		begun := time.Now()
		if _, err := a.Op(ctx, ownerOfMany, "aten::add", x, x); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begun))
	}
	return took, nil
}

// poll calls ready every millisecond until it returns true or an error, or ctx ends. It returns the
// error, or the cause of ctx.
func poll(ctx context.Context, ready func() (bool, error)) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the references are not settled: %w", context.Cause(ctx))
		}
	}
}

// footprint returns the bytes of memory that this process uses after a garbage collection: the live
// objects of the heap, and everything that the runtime has obtained beside the heap, for example the
// records of cleanups.
func footprint() int64 {
	runtime.GC()
	runtime.GC() // the first one only moves the objects of a sync.Pool to where the second one frees them
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.Sys - m.HeapSys)
}
