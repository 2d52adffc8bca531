package rref

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/bench/internal/rpcpeer"
	"github.com/tensorpipe-go/tensorpipe/bench/rpc"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func TestMain(m *testing.M) {
	short.SkipPackage("measures between processes")
	if rpc.IsWorker() {
		if err := rpc.RunWorker(context.Background(), os.Stdin, Configure); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leakcheck.Main(m)
}

// paths are the connections that are measured: what a peer calls them, and where workers listen.
var paths = []struct{ over, listen string }{{rpcpeer.Default, ""}, {rpcpeer.TCP, "uv://127.0.0.1:0"}}

// processes makes this process worker0 of a group of world workers, each a process of its own, and
// returns its agent. The functions configure change the configuration of worker0.
func processes(t testing.TB, world int, listen string, configure ...func(*agent.Config)) *agent.Agent {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	a, stop, err := rpc.Start(t.Context(), path, world, "tcp://"+freeport.Addr(t), listen, append(configure, Configure)...)
	t.Cleanup(func() {
		require.NoError(t, stop()) // this process serves the store
		if a != nil {
			require.NoError(t, a.Close())
		}
	})
	require.NoError(t, err)
	return a
}

// workers returns the agents of a group of n workers in this process, which are connected as workers
// in processes of one machine are by default.
func workers(t testing.TB, n int) []*agent.Agent {
	t.Helper()
	s := store.NewMemory(store.Limits{})
	agents, errs := make([]*agent.Agent, n), make([]error, n)
	var joining sync.WaitGroup
	for rank := range n {
		c := agent.Config{Name: fmt.Sprint("worker", rank), Rank: rank, WorldSize: n, Store: s, Logger: slog.New(slog.DiscardHandler)}
		Configure(&c)
		joining.Go(func() { agents[rank], errs[rank] = agent.Join(t.Context(), c) })
	}
	joining.Wait()
	t.Cleanup(func() {
		for _, a := range agents {
			if a != nil {
				require.NoError(t, a.Close())
			}
		}
		require.NoError(t, s.Close())
	})
	require.NoError(t, errors.Join(errs...))
	return agents
}

// matrices returns the two tensors of 2x2 that are added.
func matrices(t testing.TB) (x, y *tensor.Tensor) {
	t.Helper()
	x, err := tensor.FromSlice([]float32{1, 2, 3, 4}, 2, 2)
	require.NoError(t, err)
	y, err = tensor.FromSlice([]float32{10, 20, 30, 40}, 2, 2)
	require.NoError(t, err)
	return x, y
}

// variant is a kind of call that makes a sum at worker1: a plain call, and one whose result worker1
// keeps.
type variant struct {
	name   string // of its metrics
	call   func(context.Context) (*tensor.Tensor, error)
	remote func(context.Context) *rref.Ref[*tensor.Tensor]
}

// variants returns the operator aten::add, as torch.add is called, and a function with default options.
func variants(t testing.TB, a *agent.Agent) []variant {
	x, y := matrices(t)
	xArg, yArg, pair := any(x), any(y), rpc.Pair{A: x, B: y}
	return []variant{
		{
			"", func(ctx context.Context) (*tensor.Tensor, error) {
				return agent.One[*tensor.Tensor](a.Op(ctx, "worker1", "aten::add", xArg, yArg))
			},
			func(ctx context.Context) *rref.Ref[*tensor.Tensor] {
				return rref.RemoteOp[*tensor.Tensor](ctx, a, "worker1", "aten::add", xArg, yArg)
			},
		},
		{
			"func-", func(ctx context.Context) (*tensor.Tensor, error) { return rpc.Plain.Call(ctx, a, "worker1", pair) },
			func(ctx context.Context) *rref.Ref[*tensor.Tensor] {
				return rref.Remote(ctx, a, "worker1", rpc.Plain, pair)
			},
		},
	}
}

// plain makes the plain call.
func (v variant) plain(ctx context.Context) error {
	_, err := v.call(ctx)
	return err
}

// fetch creates a reference to the sum, fetches the value, and releases the reference.
func (v variant) fetch(ctx context.Context) error {
	f := v.remote(ctx)
	_, err := f.ToHere(ctx)
	return errors.Join(err, f.Release(ctx))
}

// share creates a reference to the sum, passes it to worker2, which fetches the value, and releases it.
func (v variant) share(a *agent.Agent) func(context.Context) error {
	return func(ctx context.Context) error {
		f := v.remote(ctx)
		_, err := Fetch.Call(ctx, a, "worker2", f)
		return errors.Join(err, f.Release(ctx))
	}
}

// awaitNoValues waits until worker1 owns no value.
func awaitNoValues(t testing.TB, a *agent.Agent) {
	t.Helper()
	require.Eventually(t, func() bool {
		n, err := Values.Call(t.Context(), a, "worker1", agent.None{})
		return err == nil && n == 0
	}, testwait.Limit, time.Millisecond)
}

// TestMeasures tests that everything that the benchmarks compare works, and that no value is left.
func TestMeasures(t *testing.T) {
	for _, path := range paths {
		t.Run("over="+path.over, func(t *testing.T) {
			a := processes(t, 3, path.listen)
			for _, v := range variants(t, a) {
				want, err := v.call(t.Context())
				require.NoError(t, err)
				f := v.remote(t.Context())
				shared, err := Fetch.Call(t.Context(), a, "worker2", f)
				require.NoError(t, err)
				got, err := f.ToHere(t.Context())
				require.NoError(t, err)
				require.NoError(t, f.Release(t.Context()))
				for _, sum := range []*tensor.Tensor{shared, got} {
					same, err := tensor.Equal(want, sum)
					require.NoError(t, err)
					require.True(t, same)
				}
				for _, call := range []func(context.Context) error{v.plain, v.fetch, v.share(a)} {
					times, err := rpc.Sequential(t.Context(), 1, 20, call)
					require.NoError(t, err)
					require.Positive(t, times.P50)
				}
			}
			awaitNoValues(t, a)
		})
	}
}

// TestToHereAllocates bounds the number of allocations of ToHere at both ends together.
func TestToHereAllocates(t *testing.T) {
	if race.Enabled || invariants.Enabled {
		t.Skip("the race detector and the invariants allocate themselves")
	}
	a := workers(t, 2)[0]
	ctx := t.Context()
	f := variants(t, a)[0].remote(ctx)
	allocations := testing.AllocsPerRun(2000, func() {
		_, err := f.ToHere(ctx)
		require.NoError(t, err)
	})
	t.Logf("%.0f allocations for ToHere", allocations)
	require.LessOrEqual(t, allocations, 25.0)
	require.NoError(t, f.Release(ctx))
}

// samples are measured values by metric.
type samples map[string][]float64

func (s samples) add(name string, v float64) { s[name] = append(s[name], v) }

// report reports the median of each metric.
func (s samples) report(b *testing.B) {
	for name, v := range s {
		slices.Sort(v)
		b.ReportMetric(v[len(v)/2], name)
	}
	b.ReportMetric(0, "ns/op")
}

// measure makes n calls, adds the percentiles of their durations to s, and returns their median.
func (s samples) measure(b *testing.B, name string, n int, call func(context.Context) error) time.Duration {
	b.Helper()
	times, err := rpc.Sequential(b.Context(), n/20, n, call)
	require.NoError(b, err)
	s.addTimes(name, times)
	return times.P50
}

// addTimes adds the percentiles of times to s.
func (s samples) addTimes(name string, times rpc.Times) {
	for percentile, took := range map[string]time.Duration{"p50": times.P50, "p90": times.P90, "p99": times.P99} {
		s.add(name+percentile+"-us", took.Seconds()*1e6)
	}
}

// BenchmarkRemote measures Remote with ToHere and Release alternately with the plain call that has the
// same result, over each path, in five pairs. remote-of-plain is the median of their quotients.
func BenchmarkRemote(b *testing.B) {
	for _, path := range paths {
		b.Run("over="+path.over, func(b *testing.B) {
			a := processes(b, 2, path.listen)
			ways := variants(b, a)
			for b.Loop() {
				s := samples{}
				for range 5 {
					for _, v := range ways {
						plain := s.measure(b, v.name+"plain-", 10_000, v.plain)
						remote := s.measure(b, v.name+"remote-", 10_000, v.fetch)
						s.add(v.name+"remote-of-plain", float64(remote)/float64(plain))
					}
				}
				s.report(b)
			}
		})
	}
}

// BenchmarkVersus compares references with those of PyTorch, alternately, in five pairs: Remote with
// ToHere and Release, and a reference that is passed to a third process, fetched there, and released
// at both. A ratio is the median over the pairs of PyTorch's time divided by that of this library.
func BenchmarkVersus(b *testing.B) {
	for _, path := range paths {
		b.Run("peer=torch/over="+path.over, func(b *testing.B) {
			peer, err := rpcpeer.Torch(b.Context())
			if errors.Is(err, errors.ErrUnsupported) {
				b.Skip(err)
			}
			require.NoError(b, err)
			a := processes(b, 3, path.listen)
			ways := variants(b, a)
			for b.Loop() {
				s := samples{}
				for range 5 {
					r, err := peer.Run(b.Context(), rpcpeer.Config{Over: path.over, Jobs: []rpcpeer.Job{rpcpeer.Remote(3000), rpcpeer.Share(2000)}})
					require.NoError(b, err)
					s.add("peer-remote-p50-us", r[0].P50)
					s.add("peer-share-p50-us", r[1].P50)
					for _, v := range ways {
						remote := s.measure(b, v.name+"remote-", 10_000, v.fetch)
						s.add(v.name+"remote-times-faster", r[0].P50/(remote.Seconds()*1e6))
						share := s.measure(b, v.name+"share-", 5000, v.share(a))
						s.add(v.name+"share-times-faster", r[1].P50/(share.Seconds()*1e6))
					}
				}
				s.report(b)
			}
		})
	}
}
