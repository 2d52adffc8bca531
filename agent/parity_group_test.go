package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// world is the number of workers in most of PyTorch's tests.
const world = 4

// memoryStore returns a new store in memory, which is closed at the end of the test.
func memoryStore(t *testing.T) store.Store {
	t.Helper()
	s := store.NewMemory(store.Limits{})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// member returns the Config of the worker with this rank in a static group of n workers on the
// store s. It makes no logs.
func member(s store.Store, rank, n int) agent.Config {
	return agent.Config{Name: fmt.Sprintf("worker%d", rank), Rank: rank, WorldSize: n, Store: s, Logger: slog.New(slog.DiscardHandler)}
}

// joinAll joins a worker for each of configs concurrently, and returns the agents and the errors in
// the order of configs; an agent is nil if its error is not. The agents are closed at the end of
// the test.
func joinAll(t *testing.T, configs ...agent.Config) ([]*agent.Agent, []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	agents, errs := make([]*agent.Agent, len(configs)), make([]error, len(configs))
	var wg sync.WaitGroup
	for i, c := range configs {
		wg.Go(func() { agents[i], errs[i] = agent.Join(ctx, c) })
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, a := range agents {
			if a != nil {
				require.NoError(t, a.Close())
			}
		}
	})
	return agents, errs
}

// next returns the destination of the worker whose rank follows that of a; after the last rank of
// the world comes 0.
func next(a *agent.Agent) agent.To { return agent.Rank((a.Self().Rank + 1) % world) }

func TestParityMembers(t *testing.T) {
	parity.Case(t, "rpc/RpcTest.test_get_worker_infos", func(t *testing.T) {
		for _, a := range startGroup(t, world, nil) {
			infos := a.WorkerInfos()
			require.Len(t, infos, world)
			for rank, info := range infos {
				require.Equal(t, agent.WorkerInfo{Name: fmt.Sprintf("worker%d", rank), Rank: rank}, info)
			}
			found, err := a.Workers(t.Context())
			require.NoError(t, err)
			require.Equal(t, infos, found)
		}
	})
	parity.Case(t, "rpc/RpcTest.test_duplicate_name", func(t *testing.T) {
		s := memoryStore(t)
		var configs []agent.Config
		for rank := range world {
			c := member(s, rank, world)
			c.Name = "duplicate_name"
			configs = append(configs, c)
		}
		_, errs := joinAll(t, configs...)
		for _, err := range errs {
			require.ErrorIs(t, err, agent.ErrDuplicateName)
			require.Contains(t, torch.Error(err), "is not unique")
		}
	})
	parity.Case(t, "rpc/RpcTest.test_reinit", func(t *testing.T) {
		s := memoryStore(t)
		group := startGroup(t, world, func(rank int, c *agent.Config) { c.Store = s; serveDouble(rank, c) })
		same, otherName, otherRank := member(s, 1, world), member(s, 1, world), member(s, 2, world)
		otherName.Name, otherRank.Name = "other", "worker1"
		_, errs := joinAll(t, member(s, 0, world), same, member(s, 2, world), member(s, 3, world), otherName, otherRank)
		for _, err := range errs {
			require.ErrorIs(t, err, agent.ErrJoined)
		}
		requireAll(t, group, func(a *agent.Agent) error {
			n, err := double.Call(t.Context(), a, next(a), 21)
			return errors.Join(err, want(42, n))
		})
	})
	parity.Case(t, "rpc/RpcTest.test_invalid_names", func(t *testing.T) {
		for _, name := range []string{"abc*", " ", "", strings.Repeat("a", 500)} {
			c := member(memoryStore(t), 0, 1)
			c.Name = name
			_, errs := joinAll(t, c)
			require.ErrorIs(t, errs[0], agent.ErrName)
			require.Contains(t, torch.Error(errs[0]), "Worker name must match")
			require.Contains(t, torch.Error(errs[0]), "must be non-empty and shorter than 128 chars")
		}
		c := member(memoryStore(t), 0, 1)
		c.Name = strings.Repeat("a", 120) + "A-z_:09"
		_, errs := joinAll(t, c)
		require.NoError(t, errs[0])
	})
	parity.Case(t, "rpc/RpcTest.test_init_pg_then_rpc", func(t *testing.T) {
		t.Run("one", func(t *testing.T) { twoGroups(t, callGroup{"one", 1}, callGroup{"two", 2}) })
		t.Run("two", func(t *testing.T) { twoGroups(t, callGroup{"two", 2}, callGroup{"one", 1}) })
	})
	parity.Case(t, "rpc/RpcTest.test_init_rpc_then_pg", func(t *testing.T) {
		t.Run("rpc", func(t *testing.T) { twoGroups(t, callGroup{"rpc", 1}, barrierGroup{"pg"}) })
		t.Run("pg", func(t *testing.T) { twoGroups(t, barrierGroup{"pg"}, callGroup{"rpc", 1}) })
	})
}

// groupUse is what a group does with its agents.
type groupUse interface {
	group() string
	serve() agent.Funcs
	use(ctx context.Context, a *agent.Agent) error // all workers concurrently
}

// callGroup is a group whose workers call each other. Its function multiplies by factor.
type callGroup struct {
	name   string
	factor int
}

func (g callGroup) group() string { return g.name }

func (g callGroup) serve() agent.Funcs {
	return agent.Funcs{double.Serve(func(_ context.Context, n int) (int, error) { return n * g.factor, nil })}
}

func (g callGroup) use(ctx context.Context, a *agent.Agent) error {
	n, err := double.Call(ctx, a, next(a), 10)
	sum, sumErr := agent.One[*tensor.Tensor](a.Op(ctx, next(a), "aten::add", full(1, 2, 2), 1))
	if err := errors.Join(err, want(10*g.factor, n), sumErr); err != nil {
		return err
	}
	same, err := tensor.Equal(full(2, 2, 2), sum)
	return errors.Join(err, want(true, same), a.Barrier(ctx))
}

// barrierGroup is a group whose workers serve no function and use only barriers and gathers, as a
// process group does.
type barrierGroup struct{ name string }

func (g barrierGroup) group() string    { return g.name }
func (barrierGroup) serve() agent.Funcs { return nil }

func (g barrierGroup) use(ctx context.Context, a *agent.Agent) error {
	all, err := agent.AllGather(ctx, a, g.name+a.Self().Name)
	expected := map[string]string{}
	for rank := range world {
		name := fmt.Sprint("worker", rank)
		expected[name] = g.name + name
	}
	return errors.Join(err, want(expected, all), a.Barrier(ctx))
}

// twoGroups joins two groups with the same worker names on one store, one after the other. It
// requires that each can be used alone, that both can be used concurrently, and that the second
// still can after the first has shut down.
func twoGroups(t *testing.T, first, second groupUse) {
	s := memoryStore(t)
	var groups [2][]*agent.Agent
	use := func(i int) func(*agent.Agent) error {
		p := []groupUse{first, second}[i]
		return func(a *agent.Agent) error { return p.use(t.Context(), a) }
	}
	for i, p := range []groupUse{first, second} {
		groups[i] = startGroup(t, world, func(_ int, c *agent.Config) { c.Store, c.Group, c.Funcs = s, p.group(), p.serve() })
		requireAll(t, groups[i], use(i))
	}
	both := testwait.Start(func() []error { return each(t, groups[0], use(0)) })
	requireAll(t, groups[1], use(1))
	require.NoError(t, errors.Join(testwait.Finish(t, both)...))
	requireAll(t, groups[0], shutdown(t))
	requireAll(t, groups[1], use(1))
	requireAll(t, groups[1], shutdown(t))
}

func TestParityCollective(t *testing.T) {
	parity.Case(t, "rpc/RpcTest.test_all_gather_timeout", func(t *testing.T) { simulate(t, world, nil, gatherWithMissing) })
	parity.Case(t, "rpc/RpcTest.test_rpc_barrier_multithreaded", concurrentBarriers)
	parity.Case(t, "rpc/RpcTest.test_wait_all_workers_timeout", func(t *testing.T) { simulate(t, world, nil, shutdownWithMissing) })
}

// gatherWithMissing calls AllGather at the first three of four workers, in simulated time. The
// fourth takes no part, and the leader or another worker times out. It requires that all three fail
// at that time with errors that name the cause. It repeats this, because all timeouts are
// simultaneous, and the worker that reports one first is random.
func gatherWithMissing(t *testing.T, group []*agent.Agent) {
	const limit = 100 * time.Millisecond
	gather := func(a *agent.Agent) error {
		_, err := agent.AllGather(t.Context(), a, a.Self().Rank)
		return err
	}
	for i := range 20 {
		timingOut, a := i%2, group[i%2]
		require.NoError(t, a.SetDefaultTimeout(limit))
		begun := time.Now()
		errs := each(t, group[:3], gather)
		require.Equal(t, limit, time.Since(begun))
		require.ErrorIs(t, errs[timingOut], agent.ErrTimeout)
		for rank, err := range errs {
			require.Contains(t, torch.Error(err), "RPC ran for more than set timeout (100 ms)")
			var e *agent.Error
			require.ErrorAs(t, err, &e)
			switch {
			case errors.Is(err, agent.ErrCallerGone): // another worker's timeout
				require.Equal(t, a.Self().Name, e.Worker)
			case e.Worker == "worker0": // its own timeout
				require.Equal(t, 1, timingOut)
				require.Equal(t, 1, rank)
			default:
				require.ErrorIs(t, err, agent.ErrTimeout)
				require.Equal(t, "worker3", e.Worker)
				require.Regexp(t, `followers \[worker3\] timed out in _all_gather after 0\.10 seconds|no contribution of worker3`, torch.Error(err))
			}
		}
		require.NoError(t, a.SetDefaultTimeout(time.Hour))
	}
}

// shutdownWithMissing calls Shutdown at the first three of four workers with a deadline, in
// simulated time. It requires that all three fail at the deadline and are closed, because the
// fourth does not call Shutdown.
func shutdownWithMissing(t *testing.T, group []*agent.Agent) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begun := time.Now()
	errs := each(t, group[:3], func(a *agent.Agent) error { return a.Shutdown(ctx) })
	require.Equal(t, 50*time.Millisecond, time.Since(begun))
	require.ErrorIs(t, errors.Join(errs...), context.DeadlineExceeded)
	for _, err := range errs {
		var e *agent.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "shutdown", e.Op)
		// Its own timeout, or that of another worker at the same moment, which may have closed.
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, agent.ErrCallerGone) {
			require.ErrorIs(t, err, agent.ErrUnreachable)
		}
	}
	for _, a := range group[:3] {
		isClosed(t, a)
	}
	require.ErrorIs(t, group[3].Barrier(t.Context(), "worker3", "worker0"), agent.ErrUnreachable)
}

// concurrentBarriers calls Barrier on several goroutines of all workers. It requires that the n-th
// barrier of a worker returns only after each worker has begun n barriers.
func concurrentBarriers(t *testing.T) {
	const goroutines, times = 3, 4
	group := startGroup(t, world, nil)
	var begun [world]atomic.Int32
	requireAll(t, group, func(a *agent.Agent) error {
		var passed atomic.Int32
		errs := make(chan error, goroutines)
		for range goroutines {
			go func() {
				for range times {
					begun[a.Self().Rank].Add(1)
					if err := a.Barrier(t.Context()); err != nil {
						errs <- err
						return
					}
					n := passed.Add(1)
					for rank := range begun {
						if begun[rank].Load() < n {
							errs <- fmt.Errorf("%d barriers are behind %s, and worker%d has begun fewer", n, a.Self(), rank)
							return
						}
					}
				}
				errs <- nil
			}()
		}
		var all error
		for range goroutines {
			all = errors.Join(all, <-errs)
		}
		return all
	})
}

type otherOptions struct{ URL string }

func TestParityBackends(t *testing.T) {
	parity.Case(t, "rpc/RpcTest.test_register_rpc_backend_and_set_and_start_rpc_backend", func(t *testing.T) {
		backends := torch.NewBackends()
		stub := func(ctx context.Context, options any) (torch.Worker, error) {
			o, err := torch.OptionsOf[otherOptions]("stub_backend", options)
			if err != nil {
				return nil, err
			}
			c := member(memoryStore(t), 0, 1)
			c.Name = o.URL
			return agent.Join(ctx, c)
		}
		require.NoError(t, backends.Register("stub_backend", stub))
		require.ErrorContains(t, backends.Register("stub_backend", stub), "RPC backend stub_backend: already registered")
		w, err := backends.Join(t.Context(), "stub_backend", otherOptions{"stub"})
		require.NoError(t, err)
		require.Equal(t, "stub", w.Self().Name)
		require.NoError(t, w.Shutdown(t.Context()))
		require.ErrorIs(t, backends.Register("", stub), agent.ErrConfig)
		require.ErrorIs(t, backends.Register("none", nil), agent.ErrConfig)
	})
	parity.Case(t, "rpc/RpcTest.test_wrong_types", func(t *testing.T) {
		backends := torch.NewBackends()
		_, err := backends.Join(t.Context(), "TENSORPIPE", member(memoryStore(t), 0, 1))
		require.ErrorIs(t, err, agent.ErrConfig)
		require.ErrorContains(t, err, "Argument backend must be a member of BackendType")
		_, err = backends.Join(t.Context(), "tensorpipe", map[string]string{"init_method": "env://"})
		require.ErrorIs(t, err, agent.ErrConfig)
		require.ErrorContains(t, err, "the options of backend tensorpipe must be agent.Config, got map[string]string")
	})
	parity.Case(t, "rpc/RpcTest.test_cannot_infer_backend_from_options", func(t *testing.T) {
		backends := torch.NewBackends()
		_, err := backends.Join(t.Context(), "", otherOptions{})
		require.ErrorIs(t, err, agent.ErrConfig)
		require.ErrorContains(t, err, "Could not infer backend for options of type agent_test.otherOptions")
		w, err := backends.Join(t.Context(), "", member(memoryStore(t), 0, 1))
		require.NoError(t, err)
		require.NoError(t, w.Shutdown(t.Context()))
	})
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_mismatched_type_for_options", func(t *testing.T) {
		_, err := torch.NewBackends().Join(t.Context(), "tensorpipe", otherOptions{})
		require.ErrorIs(t, err, agent.ErrConfig)
		require.ErrorContains(t, err, "must be agent.Config, got agent_test.otherOptions")
	})
}
