package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/team"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// These cases run in real processes, as many as PyTorch has.

// liveTogether has each of four processes join, live, and shut down with the others.
func liveTogether(t *testing.T, edit func(*agent.Config), live func(m *team.Member, a *agent.Agent) error) {
	team.Start(t, world, func(m *team.Member) error {
		a, err := joinCrew(m, edit)
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
		liveTogether(t, nil, func(m *team.Member, a *agent.Agent) error {
			rank := (m.Rank + 1) % world
			peer, err := a.Worker(m.Context(), agent.To(fmt.Sprint("worker", rank)))
			byRank, rankErr := a.Worker(m.Context(), agent.Rank(rank))
			_, unknown := a.Worker(m.Context(), "WorkerUnknown")
			if !errors.Is(unknown, agent.ErrNoWorker) || !strings.Contains(unknown.Error(), "could not find destination") {
				return fmt.Errorf("WorkerUnknown: %w", unknown)
			}
			return errors.Join(err, rankErr, want(m.Name(), a.Self().Name), want(m.Rank, a.Self().Rank),
				want(fmt.Sprintf("WorkerInfo(id=%d, name=worker%d)", rank, rank), peer), want(peer, byRank))
		})
	})
	parity.Case(t, "rpc/RpcTest.test_duplicate_name_2", func(t *testing.T) {
		team.Start(t, world, func(m *team.Member) error {
			_, err := joinCrew(m, func(c *agent.Config) { c.Name = fmt.Sprint("worker", m.Rank%(world-1)) })
			if !errors.Is(err, agent.ErrDuplicateName) || !strings.Contains(err.Error(), "is not unique") {
				return fmt.Errorf("two of the same name: %w", err)
			}
			return nil
		}).Wait()
	})
	parity.Case(t, "rpc/RpcTest.test_all_gather", func(t *testing.T) {
		liveTogether(t, nil, func(m *team.Member, a *agent.Agent) error {
			all, err := agent.AllGather(m.Context(), a, a.Self().Rank)
			return errors.Join(err, want(map[string]int{"worker0": 0, "worker1": 1, "worker2": 2, "worker3": 3}, all))
		})
	})
	parity.Case(t, "rpc/RpcTest.test_init_rpc_twice", func(t *testing.T) {
		team.Start(t, world, func(m *team.Member) error {
			for range 2 {
				a, err := joinCrew(m, func(c *agent.Config) { serveDouble(m.Rank, c) })
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

// barrierHelper is PyTorch's: all of a set add one at the first of them, between
// barriers.
func barrierHelper(t *testing.T, of func(rank int) []int) {
	var count atomic.Int64
	liveTogether(t, func(c *agent.Config) {
		c.Funcs = agent.Funcs{
			resetCount.Serve(func(context.Context, agent.None) (agent.None, error) { count.Store(0); return agent.None{}, nil }),
			increment.Serve(func(context.Context, agent.None) (agent.None, error) { count.Add(1); return agent.None{}, nil }),
		}
	}, func(m *team.Member, a *agent.Agent) error {
		ranks := of(m.Rank)
		var set []agent.To
		for _, rank := range ranks {
			set = append(set, agent.Rank(rank))
		}
		for range 5 {
			_, reset := resetCount.Call(m.Context(), a, set[0], agent.None{})
			first := a.Barrier(m.Context(), set...)
			_, added := increment.Call(m.Context(), a, set[0], agent.None{})
			second := a.Barrier(m.Context(), set...)
			var counted error
			if m.Rank == ranks[0] {
				counted = want(len(set), count.Load())
			}
			third := a.Barrier(m.Context(), set...) // before the next one resets
			if err := errors.Join(reset, first, added, second, counted, third); err != nil {
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
	heavyDense  = agent.NewFunc[*tensor.Tensor, int]("test.heavy_rpc")
	heavySparse = agent.NewFunc[*tensor.Sparse, int]("test.heavy_rpc_sparse")
)

func work(x *tensor.Tensor) (int, error) {
	values, err := tensor.MutableData[float32](x)
	for i := range 100 {
		for j := range values {
			values[j] = values[j] * float32(i) / float32(i+1)
		}
	}
	return 0, err
}

// unevenWork is PyTorch's _run_uneven_workload: the first worker has something to do
// for the second, and then for the third, which has been waiting all that time.
func unevenWork(m *team.Member, a *agent.Agent, call func(to agent.To) *agent.Future[int]) error {
	if m.Rank != 0 {
		return nil
	}
	for _, to := range []agent.To{"worker1", "worker2"} {
		var calls []*agent.Future[int]
		for range 30 {
			calls = append(calls, call(to))
		}
		results, err := future.WaitAll(m.Context(), calls...)
		if err != nil {
			return err
		}
		for _, n := range results {
			if n != 0 {
				return want(0, n)
			}
		}
	}
	return nil
}

// uneven runs that and then leaves in a way.
func uneven(t *testing.T, sparse bool, leave func(ctx context.Context, a *agent.Agent) error) {
	serve := func(c *agent.Config) {
		c.Funcs = agent.Funcs{
			heavyDense.Serve(func(_ context.Context, x *tensor.Tensor) (int, error) { return work(x) }),
			heavySparse.Serve(func(_ context.Context, x *tensor.Sparse) (int, error) { return work(x.Values()) }),
		}
	}
	team.Start(t, world, func(m *team.Member) error {
		a, err := joinCrew(m, serve)
		if err != nil {
			return err
		}
		x, err := tensor.Zeros(tensor.F32, 100, 100)
		if err != nil {
			return err
		}
		i, err := tensor.FromSlice([]int64{0, 1, 2, 0, 2, 1}, 2, 3)
		if err != nil {
			return err
		}
		v, err := tensor.FromSlice([]float32{1, 2, 3}, 3)
		if err != nil {
			return err
		}
		s, err := tensor.NewSparse(i, v, 3, 3)
		if err != nil {
			return err
		}
		err = unevenWork(m, a, func(to agent.To) *agent.Future[int] {
			if sparse {
				return heavySparse.Go(m.Context(), a, to, s)
			}
			return heavyDense.Go(m.Context(), a, to, x)
		})
		return errors.Join(err, leave(m.Context(), a))
	}).Wait()
}

func TestParityUnevenWork(t *testing.T) {
	gracefully := func(ctx context.Context, a *agent.Agent) error { return a.Shutdown(ctx) }
	// Nobody leaves abruptly before all have come: the last call of the first worker
	// would not find the others.
	waitAll := func(times int) func(context.Context, *agent.Agent) error {
		return func(ctx context.Context, a *agent.Agent) error {
			var err error
			for range times {
				err = errors.Join(err, a.Barrier(ctx))
			}
			return errors.Join(err, a.Close())
		}
	}
	parity.Case(t, "rpc/RpcTest.test_graceful_shutdown_with_uneven_workload", func(t *testing.T) { uneven(t, false, gracefully) })
	parity.Case(t, "rpc/RpcTest.test_wait_all_workers_dense", func(t *testing.T) { uneven(t, false, waitAll(1)) })
	parity.Case(t, "rpc/RpcTest.test_wait_all_workers_twice_dense", func(t *testing.T) { uneven(t, false, waitAll(2)) })
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_wait_all_workers_sparse", func(t *testing.T) { uneven(t, true, waitAll(1)) })
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_wait_all_workers_twice_sparse", func(t *testing.T) { uneven(t, true, waitAll(2)) })
}

// dynamic has the first of four processes join, then the others, and then live.
func dynamic(t *testing.T, live func(m *team.Member, a *agent.Agent) error) {
	crew := team.Start(t, world, func(m *team.Member) error {
		if m.Rank > 0 {
			if err := m.Await("join"); err != nil {
				return err
			}
		}
		a, err := joinCrew(m, func(c *agent.Config) { c.WorldSize = 0; serveDouble(m.Rank, c) })
		if err != nil {
			return err
		}
		m.Say("joined")
		if err := m.Await("live"); err != nil {
			return err
		}
		err = live(m, a)
		m.Say("lived")
		return errors.Join(err, m.Await("leave"), a.Shutdown(m.Context()))
	})
	crew.Await(0, "joined")
	crew.TellAll("join")
	for rank := 1; rank < world; rank++ {
		crew.Await(rank, "joined")
	}
	crew.TellAll("live")
	for rank := range world {
		crew.Await(rank, "lived")
	}
	crew.TellAll("leave")
	crew.Wait()
}

func TestParityDynamic(t *testing.T) {
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_dynamic_rpc_init_rpc", func(t *testing.T) {
		group := startGroup(t, world, func(_ int, c *agent.Config) { c.WorldSize = 0 })
		for rank, a := range group {
			require.Equal(t, agent.WorkerInfo{Name: fmt.Sprintf("worker%d", rank), Rank: rank}, a.Self())
			require.NoError(t, a.Shutdown(t.Context()))
		}
	})
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_dynamic_rpc_new_rank_can_communicated_with_existing_rank", func(t *testing.T) {
		dynamic(t, func(m *team.Member, a *agent.Agent) error {
			if m.Rank == 0 {
				return nil
			}
			n, err := double.Call(m.Context(), a, "worker0", 21)
			return errors.Join(err, want(42, n))
		})
	})
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_dynamic_rpc_existing_rank_can_communicate_with_new_rank", func(t *testing.T) {
		dynamic(t, func(m *team.Member, a *agent.Agent) error {
			for rank := 1; m.Rank == 0 && rank < world; rank++ {
				n, err := double.Call(m.Context(), a, agent.Rank(rank), 21)
				if err := errors.Join(err, want(42, n)); err != nil {
					return err
				}
			}
			return nil
		})
	})
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_dynamic_rpc_init_rpc_without_rank", func(t *testing.T) {
		t.Setenv("RANK", "")
		c := agent.Config{Name: "worker0", Rendezvous: "env://", Logger: slog.New(slog.DiscardHandler)}
		_, errs := joinAll(t, c)
		require.ErrorContains(t, errs[0], "environment variable RANK expected")
		// Elsewhere a rank below 0 is the lowest that is free.
		group := startGroup(t, world, func(_ int, c *agent.Config) { c.Rank, c.WorldSize = -1, 0 })
		infos, err := group[0].Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, infos, world)
		for rank, info := range infos {
			require.Equal(t, rank, info.Rank)
		}
	})
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_dynamic_and_static_init_rpc_together", func(t *testing.T) {
		s := memoryStore(t)
		group := startGroup(t, world-1, func(rank int, c *agent.Config) { c.Store = s; serveDouble(rank, c) })
		late := member(s, world-1, 0)
		_, errs := joinAll(t, late)
		require.ErrorIs(t, errs[0], agent.ErrMixed)
		require.ErrorContains(t, errs[0], "RPC group mixes statically and dynamically initialized members which is not supported.")
		n, err := double.Call(t.Context(), group[0], "worker2", 21)
		require.NoError(t, err)
		require.Equal(t, 42, n)
	})
}
