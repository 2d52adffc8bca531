package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// stress returns a script that makes repeat concurrent calls of the named function at the next
// worker, with the result of arg as the argument; without an argument if arg is nil. It requires
// that each returns 0, and that the function has run repeat times there.
func stress(name string, repeat int, arg func(t require.TestingT) any) script {
	return func(t require.TestingT, w worker) {
		var all []*agent.Future[[]any]
		var args []any
		if arg != nil {
			args = append(args, arg(t))
		}
		for range repeat {
			all = append(all, w.InvokeAsync(w.ctx, w.next(1), name, args...))
		}
		results, err := future.WaitAll(w.ctx, all...)
		require.NoError(t, err)
		for _, r := range results {
			require.Equal(t, []any{0}, r)
		}
		runs, err := agent.One[int](w.Invoke(w.ctx, w.next(1), "runs"))
		require.NoError(t, err)
		require.Equal(t, repeat, runs)
	}
}

func TestParityStress(t *testing.T) {
	dense := func(require.TestingT) any { return heavyDense() }
	sparse := func(t require.TestingT) any { return buildSparse(t) }
	inProcesses(t, "rpc/RpcTest.test_stress_light_rpc", stress("light_rpc", 1000, nil))
	inProcesses(t, "rpc/RpcTest.test_stress_heavy_rpc", stress("heavy_rpc", 20, dense))
	inSimulatedTime(t, "rpc/RpcTest.test_stress_heavy_rpc_torchscript", oneSlot, stress("heavy_rpc", 20, dense))
	inSimulatedTime(t, "rpc/TensorPipeAgentRpcTest.test_stress_heavy_rpc_sparse", serveCore, stress("heavy_rpc", 20, sparse))
}

// oneSlot is a configure function for startGroup: it makes the worker serve serveCore and run one
// handler at a time.
func oneSlot(rank int, c *agent.Config) {
	serveCore(rank, c)
	c.MaxHandlers = 1
}

// A call to a slow function succeeds while the other workers, each with one handler slot, wait in a
// barrier; the barrier succeeds after that.
func TestParityDeadlock(t *testing.T) {
	inSimulatedTime(t, "rpc/RpcTest.test_deadlock", oneSlot, func(t require.TestingT, w worker) {
		if w.Self().Rank == 1 {
			sum, err := agent.One[*tensor.Tensor](w.InvokeAsync(w.ctx, w.next(1), "slow_add", full(1, 2), full(1, 2), agent.WithTimeout(15*time.Second)).Wait(w.ctx))
			require.NoError(t, err)
			equalTensor(t, full(2, 2), sum)
		}
		require.NoError(t, w.Barrier(w.ctx))
	})
}

func TestParityShutdown(t *testing.T) {
	inProcesses(t, "rpc/RpcTest.test_local_shutdown", func(t require.TestingT, w worker) {
		require.NoError(t, w.Close())
		_, err := w.Op(w.ctx, w.Self().To(), "aten::add", full(1, 2), full(1, 2))
		require.ErrorIs(t, err, agent.ErrClosed)
	})
	inProcesses(t, "rpc/RpcTest.test_local_shutdown_with_rpc", func(t require.TestingT, w worker) {
		equalTensor(t, full(2, w.n, w.n), w.add(t, w.next(1), full(1, w.n, w.n), full(1, w.n, w.n)).(*tensor.Tensor))
		require.NoError(t, w.Barrier(w.ctx))
		require.NoError(t, w.Close())
	})
	inProcesses(t, "rpc/RpcTest.test_shutdown_followed_by_rpc", func(t require.TestingT, w worker) {
		equalTensor(t, full(2, w.n, w.n), w.add(t, w.next(1), full(1, w.n, w.n), full(1, w.n, w.n)).(*tensor.Tensor))
		require.NoError(t, w.Shutdown(w.ctx))
		for _, to := range []agent.To{w.next(1), w.Self().To()} {
			_, err := w.Op(w.ctx, to, "aten::add", full(1, w.n, w.n), full(1, w.n, w.n))
			require.ErrorIs(t, err, agent.ErrClosed)
			_, err = w.InvokeAsync(w.ctx, to, "light_rpc").Wait(w.ctx)
			require.ErrorIs(t, err, agent.ErrClosed)
		}
	})
}

// Pending and later calls to a killed worker fail, and calls to another worker succeed.
func TestParityKilled(t *testing.T) {
	parity.Case(t, "rpc/RpcTest.test_handle_send_exceptions", func(t *testing.T) {
		group := procgroup.Start(t, parityWorld, joinSurvivor)
		group.WaitFor(1, "waiting")
		group.Kill(2)
		group.WaitFor(1, "done")
		group.SendAll("end")
		group.Wait()
	})
}

func joinSurvivor(m *procgroup.Member) error {
	a, err := joinCore(m)
	if err != nil {
		return err
	}
	defer a.Close()
	if m.Rank != 1 {
		return m.WaitFor("end")
	}
	t := panicT{}
	require.NoError(t, a.SetDefaultTimeout(30*time.Second))
	_, err = a.Op(m.Context(), "worker2", "aten::add", full(1, 1), 3)
	require.NoError(t, err)
	pending := a.InvokeAsync(m.Context(), "worker2", "timed_out_rpc")
	m.Send("waiting")
	later := func() *agent.Future[[]any] { return a.OpAsync(m.Context(), "worker2", "aten::add", full(1, 1), 3) }
	for _, call := range []func() *agent.Future[[]any]{func() *agent.Future[[]any] { return pending }, later} {
		_, err = call().Wait(m.Context())
		require.NoError(t, wantDeath(err, "call", "worker2"))
		require.NotErrorIs(t, err, agent.ErrTimeout)
	}
	_, err = a.Op(m.Context(), "worker3", "aten::add", full(1, 1), 3)
	require.NoError(t, err, "a call to another worker")
	m.Send("done")
	return m.WaitFor("end")
}

// failEarly returns a script that waits with future.WaitAll for a call that does not end and for
// two calls of failing. It requires that the wait ends with an error that contains text while the
// first call is still pending.
func failEarly(text string, failing func(w worker) *agent.Future[[]any]) script {
	return func(t require.TestingT, w worker) {
		require.NoError(t, w.Barrier(w.ctx))
		first := w.InvokeAsync(w.ctx, w.next(1), "timed_out_rpc")
		_, err := future.WaitAll(w.ctx, first, failing(w), failing(w))
		require.ErrorContains(t, err, text)
		require.False(t, first.IsDone())
		_, err = w.Invoke(w.ctx, w.next(1), "let_go")
		require.NoError(t, err)
		_, err = first.Wait(w.ctx)
		require.NoError(t, err)
	}
}

func TestParityWaitAll(t *testing.T) {
	raise := func(w worker) *agent.Future[[]any] { return w.InvokeAsync(w.ctx, w.next(1), "raise_func") }
	inProcesses(t, "rpc/RpcTest.test_wait_all_exit_early_python", failEarly(expectedErr, raise))
	inSimulatedTime(t, "rpc/RpcTest.test_wait_all_exit_early_builtin", serveCore, failEarly("size of tensor", func(w worker) *agent.Future[[]any] {
		return w.OpAsync(w.ctx, w.next(1), "aten::add", full(1, 10), full(1, 5))
	}))
	inSimulatedTime(t, "rpc/RpcTest.test_wait_all_exit_early_script_function", serveCore, failEarly(expectedErr, func(w worker) *agent.Future[[]any] {
		return future.ThenFuture(raise(w), func(f *agent.Future[[]any]) (*agent.Future[[]any], error) {
			if err := f.Err(); err != nil {
				return nil, err
			}
			return w.OpAsync(w.ctx, w.next(1), "aten::add", full(1, 2), 1), nil
		})
	}))
}
