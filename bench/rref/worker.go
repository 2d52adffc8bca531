// Package rref measures remote references between workers in separate processes, and compares them
// with those of PyTorch in the same run.
package rref

import (
	"context"
	"errors"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// The functions that the workers serve beside those of bench/rpc.
var (
	// Identity returns its argument, a value to which references are made.
	Identity = agent.NewFunc[int, int]("bench.rref.identity")

	// Fetch returns the value of its argument, which it releases.
	Fetch = agent.NewFunc[*rref.Ref[*tensor.Tensor], *tensor.Tensor]("bench.rref.fetch")

	// Keep returns its argument, and keeps it until Release releases all that were kept.
	Keep    = agent.NewFunc[*rref.Ref[int], *rref.Ref[int]]("bench.rref.keep")
	Release = agent.NewFunc[agent.None, agent.None]("bench.rref.release")

	// Values returns the number of values that the worker owns.
	Values = agent.NewFunc[agent.None, int64]("bench.rref.values")

	// Create makes references to values of worker0, in the number of its argument, keeps them, and
	// returns the bytes that they take. Drop releases them.
	Create = agent.NewFunc[int, int64]("bench.rref.create")
	Drop   = agent.NewFunc[agent.None, Dropped]("bench.rref.drop")
)

// worker is the state that the functions of one worker share.
type worker struct {
	refs *rref.Refs

	mu   sync.Mutex
	kept []*rref.Ref[int]
}

// Configure adds references, and the functions of this package, to the configuration of a worker. It
// is for rpc.Start and rpc.RunWorker.
func Configure(c *agent.Config) {
	w := &worker{refs: rref.New(rref.Options{})}
	c.Extensions = append(c.Extensions, w.refs)
	c.Funcs = append(c.Funcs,
		Identity.Serve(func(_ context.Context, n int) (int, error) { return n, nil }),
		Fetch.Serve(fetch), Keep.Serve(w.keep), Release.Serve(w.release), Values.Serve(w.values),
		Create.Serve(w.create), Drop.Serve(w.drop))
}

// fetch is the function of Fetch. Its error is that of ToHere.
func fetch(ctx context.Context, f *rref.Ref[*tensor.Tensor]) (*tensor.Tensor, error) {
	sum, err := f.ToHere(ctx)
	return sum, errors.Join(err, f.Release(ctx))
}

// keep is the function of Keep. It has no error.
func (w *worker) keep(_ context.Context, f *rref.Ref[int]) (*rref.Ref[int], error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = append(w.kept, f)
	return f, nil
}

// release is the function of Release. It has no error but that of Ref.Release.
func (w *worker) release(ctx context.Context, _ agent.None) (agent.None, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := releaseAll(ctx, w.kept)
	w.kept = nil
	return agent.None{}, err
}

// releaseAll releases refs, and returns the errors of doing so.
func releaseAll(ctx context.Context, refs []*rref.Ref[int]) error {
	var err error
	for _, f := range refs {
		err = errors.Join(err, f.Release(ctx))
	}
	return err
}

// values is the function of Values. It has no error.
func (w *worker) values(context.Context, agent.None) (int64, error) {
	return w.refs.Metrics()["owner_rrefs"], nil
}
