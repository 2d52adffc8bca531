package rref_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// leak has each worker keep a reference to a value of the next worker while all shut down, and returns
// the errors of Shutdown.
func leak(t *testing.T, ignore bool) (errs []error) {
	g := start(t, parityWorld, func(rank int, c *agent.Config, o *rref.Options) {
		serveParity(rank, c, o)
		o.KeepAtShutdown, o.IgnoreLeaks = true, ignore
	})
	held := make([]*rref.Ref[*tensor.Tensor], parityWorld)
	g.each(func(t require.TestingT, w worker) {
		require.NoError(t, w.Barrier(w.ctx))
		held[w.n-1] = rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", ones(), 1)
	})
	errs = g.shutdown()
	for rank, a := range g.agents {
		require.ErrorIs(t, a.Shutdown(t.Context()), agent.ErrClosed)
		require.False(t, held[rank].IsOwner())
	}
	runtime.KeepAlive(held)
	return errs
}

// circular is a value that refers to itself through another one.
type circular struct {
	other *circular
	ref   *rref.Ref[*tensor.Tensor]
}

func TestParityShutdown(t *testing.T) {
	parity.Case(t, "rpc/RpcTest.test_rref_leak", func(t *testing.T) {
		for _, err := range leak(t, false) {
			require.ErrorIs(t, err, rref.ErrLeak)
			require.Contains(t, torch.Error(err), "Leaking RRef")
			require.ErrorContains(t, err, "a reference of worker")
		}
	})
	parity.Case(t, "rpc/RpcTest.test_ignore_rref_leak", func(t *testing.T) {
		require.Equal(t, make([]error, parityWorld), leak(t, true))
	})
	parity.Case(t, "rpc/RpcTest.test_non_garbage_collected_user_rref_due_to_local_circular_dependency", func(t *testing.T) {
		g := start(t, parityWorld, serveParity)
		g.each(func(t require.TestingT, w worker) {
			a, b := &circular{}, &circular{}
			a.other, b.other = b, a
			rank := w.Self().Rank
			a.ref = rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", full(1, rank, rank), 2)
			require.NoError(t, w.Shutdown(w.ctx))
			require.Equal(t, empty, w.refs.Metrics())
			require.Same(t, a, a.other.other) // both live until here
		})
	})
	parity.Case(t, "rpc/RpcTest.test_use_rref_after_shutdown", func(t *testing.T) {
		g := start(t, parityWorld, serveParity)
		alone := start(t, 1, serveParity)
		refs := make([]*rref.Ref[*tensor.Tensor], parityWorld)
		g.each(func(t require.TestingT, w worker) {
			refs[w.n-1] = rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", full(1, w.n, w.n), full(1, w.n, w.n))
		})
		g.finish()
		for rank, f := range refs {
			_, err := f.ToHere(t.Context())
			require.ErrorIs(t, err, rref.ErrReleased)
			require.Contains(t, torch.Error(err), torch.Reference(false, f.Label(), f.ForkLabel())+" has been deleted. Cannot call to_here() on it after deletion.")
			args := [2]*rref.Ref[*tensor.Tensor]{f, f}
			_, err = dense.addRefs.Call(t.Context(), g.agents[rank], "worker0", args)
			require.ErrorIs(t, err, agent.ErrClosed)
			_, err = dense.addRefs.Call(t.Context(), alone.agents[0], "worker0", args)
			require.ErrorIs(t, err, rref.ErrReleased)
			require.Contains(t, torch.Error(err), "Cannot call fork an UserRRef after deletion.")
		}
		alone.finish()
	})
	parity.Case(t, "rpc/RpcTest.test_shutdown_errors", func(t *testing.T) {
		simulate(t, parityWorld, func(rank int, c *agent.Config, _ *rref.Options) {
			if rank != 0 {
				f := &failingDrain{}
				c.Extensions, c.FaultHook = append(c.Extensions, f), f.inject
			}
		}, func(g *group) {
			errs := make([]error, parityWorld)
			var all sync.WaitGroup
			for rank, a := range g.agents {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(g.t.Context(), time.Minute)
					defer cancel()
					errs[rank] = a.Shutdown(ctx)
				})
			}
			all.Wait()
			for rank, err := range errs {
				if rank == 0 {
					require.ErrorIs(t, err, agent.ErrTimeout)
					// The leader and its caller time out at the same moment, and either may report it.
					require.Regexp(t, `followers \[worker1 worker2 worker3\] timed out in _all_gather after 60\.00 seconds|no contribution of worker1, worker2, worker3`, torch.Error(err))
					continue
				}
				require.ErrorIs(t, err, errSimulated)
			}
		})
	})
}

var errSimulated = errors.New("simulation rref")

// failingDrain is an extension that is drained before the references, and makes the first message fail
// that those send then: the contribution to the round in which the references are counted.
type failingDrain struct{ fail atomic.Bool }

func (f *failingDrain) inject(m *agent.Message) (fault agent.Fault) {
	if m.Kind == agent.KindRequest && f.fail.Swap(false) {
		fault.Err = errSimulated
	}
	return fault
}

func (f *failingDrain) Drain(context.Context) error {
	f.fail.Store(true)
	return nil
}

func (*failingDrain) Key() any                      { return errSimulated }
func (*failingDrain) Configure(*agent.Config) error { return nil }
func (*failingDrain) Start(*agent.Agent) error      { return nil }
func (*failingDrain) Close() error                  { return nil }
func (*failingDrain) Dump(io.Writer) error          { return nil }
func (*failingDrain) Metrics() map[string]int64     { return nil }
