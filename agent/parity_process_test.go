package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// These cases run in as many processes as in PyTorch.

// runProcesses starts a static group of four processes. Each joins, with a Config that edit may
// change, runs live, and then shuts down. The test fails if any of these steps returns an error;
// after an error of live the process closes its agent instead.
func runProcesses(t *testing.T, edit func(*agent.Config), live func(m *procgroup.Member, a *agent.Agent) error) {
	procgroup.Start(t, world, func(m *procgroup.Member) error {
		a, err := joinMember(m, edit)
		if err != nil {
			return err
		}
		if err := live(m, a); err != nil {
			return errors.Join(err, a.Close())
		}
		return a.Shutdown(m.Context())
	}).Wait()
}

func TestParityProcesses(t *testing.T) {
	parity.Case(t, "rpc/RpcTest.test_worker_id", func(t *testing.T) {
		runProcesses(t, nil, func(m *procgroup.Member, a *agent.Agent) error {
			rank := (m.Rank + 1) % world
			peer, err := a.Worker(m.Context(), agent.To(fmt.Sprint("worker", rank)))
			byRank, rankErr := a.Worker(m.Context(), agent.Rank(rank))
			_, unknown := a.Worker(m.Context(), "WorkerUnknown")
			if !errors.Is(unknown, agent.ErrNoWorker) || !strings.Contains(torch.Error(unknown), "could not find destination") {
				return fmt.Errorf("WorkerUnknown: %w", unknown)
			}
			return errors.Join(err, rankErr, want(m.Name(), a.Self().Name), want(m.Rank, a.Self().Rank),
				want(fmt.Sprintf("WorkerInfo(id=%d, name=worker%d)", rank, rank), torch.WorkerInfo(peer)), want(peer, byRank))
		})
	})
	parity.Case(t, "rpc/RpcTest.test_duplicate_name_2", func(t *testing.T) {
		procgroup.Start(t, world, func(m *procgroup.Member) error {
			_, err := joinMember(m, func(c *agent.Config) { c.Name = fmt.Sprint("worker", m.Rank%(world-1)) })
			if !errors.Is(err, agent.ErrDuplicateName) || !strings.Contains(torch.Error(err), "is not unique") {
				return fmt.Errorf("two of the same name: %w", err)
			}
			return nil
		}).Wait()
	})
	parity.Case(t, "rpc/RpcTest.test_all_gather", func(t *testing.T) {
		runProcesses(t, nil, func(m *procgroup.Member, a *agent.Agent) error {
			all, err := agent.AllGather(m.Context(), a, a.Self().Rank)
			return errors.Join(err, want(map[string]int{"worker0": 0, "worker1": 1, "worker2": 2, "worker3": 3}, all))
		})
	})
	parity.Case(t, "rpc/RpcTest.test_init_rpc_twice", func(t *testing.T) {
		procgroup.Start(t, world, func(m *procgroup.Member) error {
			for range 2 {
				a, err := joinMember(m, func(c *agent.Config) { serveDouble(m.Rank, c) })
				if err != nil {
					return err
				}
				n, err := double.Call(m.Context(), a, next(a), 21)
				if err := errors.Join(err, want(42, n), a.Shutdown(m.Context())); err != nil {
					return err
				}
			}
			return nil
		}).Wait()
	})
}

var (
	resetCount = agent.NewFunc[agent.None, agent.None]("test.reset_count")
	increment  = agent.NewFunc[agent.None, agent.None]("test.increment_count")
)

// barrierHelper is the helper of the same name in PyTorch's tests: between barriers all workers of
// a set increment a counter at the first worker of the set, which requires that the counter equals
// the size of the set. of returns the ranks of the set to which a rank belongs.
func barrierHelper(t *testing.T, of func(rank int) []int) {
	var count atomic.Int64
	runProcesses(t, func(c *agent.Config) {
		c.Funcs = agent.Funcs{
			resetCount.Serve(func(context.Context, agent.None) (agent.None, error) { count.Store(0); return agent.None{}, nil }),
			increment.Serve(func(context.Context, agent.None) (agent.None, error) { count.Add(1); return agent.None{}, nil }),
		}
	}, func(m *procgroup.Member, a *agent.Agent) error {
		ranks := of(m.Rank)
		var set []agent.To
		for _, rank := range ranks {
			set = append(set, agent.Rank(rank))
		}
		for range 5 {
			_, reset := resetCount.Call(m.Context(), a, set[0], agent.None{})
			var err error
			if m.Rank == ranks[0] { // the others increment after the barrier
				err = want(0, count.Load())
			}
			first := a.Barrier(m.Context(), set...)
			_, added := increment.Call(m.Context(), a, set[0], agent.None{})
			second := a.Barrier(m.Context(), set...)
			var counted error
			if m.Rank == ranks[0] {
				counted = want(len(set), count.Load())
			}
			third := a.Barrier(m.Context(), set...) // before the next iteration resets the counter
			if err := errors.Join(reset, err, first, added, second, counted, third); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestParityBarriers(t *testing.T) {
	parity.Case(t, "rpc/RpcTest.test_rpc_barrier_all", func(t *testing.T) {
		barrierHelper(t, func(int) []int { return []int{0, 1, 2, 3} })
	})
	parity.Case(t, "rpc/RpcTest.test_rpc_barrier_subset", func(t *testing.T) {
		barrierHelper(t, func(rank int) []int { return []int{rank % 2, rank%2 + 2} })
	})
	parity.Case(t, "rpc/RpcTest.test_rpc_barrier_partial_subset", func(t *testing.T) {
		barrierHelper(t, func(rank int) []int {
			if rank%2 == 1 {
				return []int{1, 3}
			}
			return []int{rank}
		})
	})
}

var (
	workDense  = agent.NewFunc[*tensor.Tensor, int]("test.heavy_rpc")
	workSparse = agent.NewFunc[*tensor.Sparse, int]("test.heavy_rpc_sparse")
)

// unevenCalls is the helper _run_uneven_workload of PyTorch's tests: the worker of rank 0 makes 30
// calls to worker1 and waits, and then 30 to worker2, which is idle until then. All results must be
// 0. At other workers it makes no calls and returns nil.
func unevenCalls(m *procgroup.Member, a *agent.Agent, call func(to agent.To) *agent.Future[int]) error {
	if m.Rank != 0 {
		return nil
	}
	for _, to := range []agent.To{"worker1", "worker2"} {
		var calls []*agent.Future[int]
		for range 30 {
			calls = append(calls, call(to))
		}
		if _, err := future.All(calls...).Wait(m.Context()); err != nil {
			return err
		}
		results, err := future.WaitAll(m.Context(), calls...)
		if err := errors.Join(err, want(make([]int, 30), results)); err != nil {
			return err
		}
	}
	return nil
}

// runUneven starts four processes that join, run unevenCalls with dense or, if sparse is true,
// sparse tensors, and then call leave, which must end the membership.
func runUneven(t *testing.T, sparse bool, leave func(ctx context.Context, a *agent.Agent) error) {
	serve := func(c *agent.Config) {
		c.Funcs = agent.Funcs{
			workDense.Serve(func(_ context.Context, x *tensor.Tensor) (int, error) { return 0, heavy(x) }),
			workSparse.Serve(func(_ context.Context, x *tensor.Sparse) (int, error) { return 0, heavy(x) }),
		}
	}
	procgroup.Start(t, world, func(m *procgroup.Member) error {
		a, err := joinMember(m, serve)
		if err != nil {
			return err
		}
		x, s := heavyDense(), buildSparse(panicT{})
		err = unevenCalls(m, a, func(to agent.To) *agent.Future[int] {
			if sparse {
				return workSparse.Go(m.Context(), a, to, s)
			}
			return workDense.Go(m.Context(), a, to, x)
		})
		return errors.Join(err, leave(m.Context(), a))
	}).Wait()
}

func TestParityUnevenWork(t *testing.T) {
	gracefully := func(ctx context.Context, a *agent.Agent) error { return a.Shutdown(ctx) }
	// No worker closes its agent before all have reached the barrier, since the first worker may
	// still make calls.
	waitAll := func(times int) func(context.Context, *agent.Agent) error {
		return func(ctx context.Context, a *agent.Agent) error {
			var err error
			for range times {
				err = errors.Join(err, a.Barrier(ctx))
			}
			return errors.Join(err, a.Close())
		}
	}
	parity.Case(t, "rpc/RpcTest.test_graceful_shutdown_with_uneven_workload", func(t *testing.T) { runUneven(t, false, gracefully) })
	parity.Case(t, "rpc/RpcTest.test_wait_all_workers_dense", func(t *testing.T) { runUneven(t, false, waitAll(1)) })
	parity.Case(t, "rpc/RpcTest.test_wait_all_workers_twice_dense", func(t *testing.T) { runUneven(t, false, waitAll(2)) })
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_wait_all_workers_sparse", func(t *testing.T) { runUneven(t, true, waitAll(1)) })
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_wait_all_workers_twice_sparse", func(t *testing.T) { runUneven(t, true, waitAll(2)) })
}

// runDynamic starts four processes that join a dynamic group: the first alone, then the others
// concurrently. Once all have joined, the first process runs first. Then all shut down. An error of
// any step fails the test.
func runDynamic(t *testing.T, first func(m *procgroup.Member, a *agent.Agent) error) {
	group := procgroup.Start(t, world, func(m *procgroup.Member) error {
		if m.Rank != 0 {
			if err := m.WaitFor("join"); err != nil {
				return err
			}
		}
		a, err := joinMember(m, func(c *agent.Config) { c.WorldSize = 0 })
		if err != nil {
			return err
		}
		m.Send("joined")
		if m.Rank == 0 {
			if err := m.WaitFor("act"); err != nil {
				return err
			}
			err = first(m, a)
			m.Send("done")
		}
		return errors.Join(err, m.WaitFor("leave"), a.Shutdown(m.Context()))
	})
	group.WaitFor(0, "joined")
	group.SendAll("join")
	for rank := 1; rank < world; rank++ {
		group.WaitFor(rank, "joined")
	}
	group.SendAll("act")
	group.WaitFor(0, "done")
	group.SendAll("leave")
	group.Wait()
}

// onePlusOne calls aten::add for 1 and 1 at the worker that to addresses, and returns nil if the
// sum is 2.
func onePlusOne(m *procgroup.Member, a *agent.Agent, to agent.To) error {
	sum, err := agent.One[*tensor.Tensor](a.Op(m.Context(), to, "aten::add", integer(1), integer(1)))
	if err != nil {
		return err
	}
	same, err := tensor.Equal(integer(2), sum)
	return errors.Join(err, want(true, same))
}

// callUntilStopped calls worker0 repeatedly until the test sends "stop", and sends the test
// "called" after the first call. It returns the first error of a call.
func callUntilStopped(m *procgroup.Member, a *agent.Agent) error {
	stop := make(chan error, 1)
	go func() { stop <- m.WaitFor("stop") }()
	for n := 0; ; n++ {
		if err := onePlusOne(m, a, "worker0"); err != nil {
			return err
		}
		if n == 0 {
			m.Send("called")
		}
		select {
		case err := <-stop:
			return err
		default:
		}
	}
}

// callDuringJoin starts four processes of a dynamic group. The last one joins while the second and
// the third call the first; they continue until it has joined and has made a call too. No call may
// fail.
func callDuringJoin(t *testing.T) {
	const last = world - 1
	group := procgroup.Start(t, world, func(m *procgroup.Member) error {
		if m.Rank != 0 {
			if err := m.WaitFor("join"); err != nil {
				return err
			}
		}
		a, err := joinMember(m, func(c *agent.Config) { c.WorldSize = 0 })
		if err != nil {
			return err
		}
		m.Send("joined")
		if m.Rank != 0 {
			err = callUntilStopped(m, a)
			m.Send("done")
		}
		return errors.Join(err, m.WaitFor("leave"), a.Shutdown(m.Context()))
	})
	group.WaitFor(0, "joined")
	for rank := 1; rank < last; rank++ {
		group.Send(rank, "join")
	}
	for rank := 1; rank < last; rank++ {
		group.WaitFor(rank, "called")
	}
	group.Send(last, "join")
	group.WaitFor(last, "joined")
	group.WaitFor(last, "called")
	for rank := 1; rank < world; rank++ {
		group.Send(rank, "stop")
	}
	for rank := 1; rank < world; rank++ {
		group.WaitFor(rank, "done")
	}
	group.SendAll("leave")
	group.Wait()
}

func TestParityDynamic(t *testing.T) {
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_dynamic_rpc_init_rpc", func(t *testing.T) {
		group := startGroup(t, world, func(_ int, c *agent.Config) { c.WorldSize = 0 })
		for rank, a := range group {
			require.Equal(t, agent.WorkerInfo{Name: fmt.Sprintf("worker%d", rank), Rank: rank}, a.Self())
		}
		requireAll(t, group, shutdown(t))
	})
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_dynamic_rpc_new_rank_can_communicated_with_existing_rank", func(t *testing.T) {
		callDuringJoin(t)
	})
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_dynamic_rpc_existing_rank_can_communicate_with_new_rank", func(t *testing.T) {
		runDynamic(t, func(m *procgroup.Member, a *agent.Agent) (err error) {
			for rank := 1; rank < world; rank++ {
				err = errors.Join(err, onePlusOne(m, a, agent.Rank(rank)), onePlusOne(m, a, agent.To(fmt.Sprint("worker", rank))))
			}
			return err
		})
	})
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_dynamic_rpc_init_rpc_without_rank", func(t *testing.T) {
		t.Setenv("RANK", "")
		c := agent.Config{Name: "worker0", Rendezvous: "env://", Logger: slog.New(slog.DiscardHandler)}
		_, errs := joinAll(t, c)
		require.ErrorIs(t, errs[0], store.ErrURL)
		require.ErrorContains(t, errs[0], "environment variable RANK expected")
		// Nor does a static group assign ranks.
		_, errs = joinAll(t, member(memoryStore(t), -1, world))
		require.ErrorIs(t, errs[0], agent.ErrConfig)
		require.ErrorContains(t, errs[0], "rank -1 in a static group")
		// With tcp:// a worker without a rank joins the store, and never serves it.
		first, second := member(nil, 0, 0), member(nil, -1, 0)
		first.Rendezvous = "tcp://" + freeport.Addr(t)
		second.Name, second.Rendezvous, second.JoinTimeout = "second", first.Rendezvous, 50*time.Millisecond
		_, errs = joinAll(t, second)
		require.ErrorIs(t, errs[0], agent.ErrTimeout)
		second.JoinTimeout = 0
		_, errs = joinAll(t, first)
		require.NoError(t, errs[0])
		group, errs := joinAll(t, second)
		require.NoError(t, errs[0])
		require.Equal(t, agent.WorkerInfo{Name: "second", Rank: 1}, group[0].Self())
		t.Run("file", func(t *testing.T) { joinWithoutRank(t, "file://"+filepath.Join(t.TempDir(), "store")) })
		t.Run("tcp", func(t *testing.T) {
			addr := freeport.Addr(t)
			s, err := store.Serve(t.Context(), addr, store.ServerOptions{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			joinWithoutRank(t, "tcp://"+addr)
		})
	})
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_dynamic_and_static_init_rpc_together", func(t *testing.T) {
		s := memoryStore(t)
		group := startGroup(t, world-1, func(rank int, c *agent.Config) { c.Store = s; serveDouble(rank, c) })
		late := member(s, world-1, 0)
		_, errs := joinAll(t, late)
		require.ErrorIs(t, errs[0], agent.ErrMixed)
		require.Contains(t, torch.Error(errs[0]), "RPC group mixes statically and dynamically initialized members which is not supported.")
		n, err := double.Call(t.Context(), group[0], "worker2", 21)
		require.NoError(t, err)
		require.Equal(t, 42, n)
	})
}

// joinWithoutRank joins workers of a dynamic group without a rank, through the store at url. It
// requires that they get the ranks from 0 on, each a different one, and that a worker that joins
// after another has left gets the free rank.
func joinWithoutRank(t *testing.T, url string) {
	var configs []agent.Config
	for i := range world {
		configs = append(configs, agent.Config{
			Name: fmt.Sprintf("worker_%c", 'a'+i), Rank: -1, Rendezvous: url, Logger: slog.New(slog.DiscardHandler),
		})
	}
	group, errs := joinAll(t, configs...)
	require.NoError(t, errors.Join(errs...))
	byRank := make([]agent.WorkerInfo, world)
	for i, a := range group {
		require.Equal(t, configs[i].Name, a.Self().Name)
		require.Contains(t, []int{0, 1, 2, 3}, a.Self().Rank)
		byRank[a.Self().Rank] = a.Self()
	}
	for _, a := range group {
		infos, err := a.Workers(t.Context())
		require.NoError(t, err)
		require.Equal(t, byRank, infos)
	}
	left := group[2]
	require.NoError(t, left.Shutdown(t.Context()))
	again, errs := joinAll(t, configs[2])
	require.NoError(t, errs[0])
	require.Equal(t, left.Self(), again[0].Self())
	for _, a := range []*agent.Agent{again[0], group[3], group[1], group[0]} {
		require.NoError(t, a.Shutdown(t.Context()))
	}
}
