package rpc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/bench/internal/rpcpeer"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func TestMain(m *testing.M) {
	short.SkipPackage("measures between processes")
	if IsWorker() {
		if err := RunWorker(context.Background(), os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leakcheck.Main(m)
}

var paths = []struct{ name, listen string }{{"shm", ""}, {"uv", overTCP}}

func group(t testing.TB, world int, listen string) *agent.Agent {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	a, stop, err := Start(t.Context(), path, world, "tcp://"+freeport.Addr(t), listen)
	t.Cleanup(func() {
		require.NoError(t, stop()) // this process serves the store
		if a != nil {
			require.NoError(t, a.Close())
		}
	})
	require.NoError(t, err)
	return a
}

func ones(t testing.TB, shape ...int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.Zeros(tensor.F32, shape...)
	require.NoError(t, err)
	require.NoError(t, tensor.Fill(x, float32(1)))
	return x
}

func callAdd(t testing.TB, a *agent.Agent, to agent.To) func(context.Context) error {
	return callAddBy(t, Add, a, to)
}

// callAddBy returns a function that calls f at the worker to with two tensors of 2x2 and waits for
// the sum. The tensors are the same in each call.
func callAddBy(t testing.TB, f agent.Func[Pair, *tensor.Tensor], a *agent.Agent, to agent.To) func(context.Context) error {
	args := Pair{ones(t, 2, 2), ones(t, 2, 2)}
	return func(ctx context.Context) error {
		_, err := f.Call(ctx, a, to, args)
		return err
	}
}

// callAten returns a function that calls the operator aten::add, which every worker serves, at the
// worker to with two tensors of 2x2, and waits for the sum.
func callAten(t testing.TB, a *agent.Agent, to agent.To) func(context.Context) error {
	x, y := any(ones(t, 2, 2)), any(ones(t, 2, 2))
	return func(ctx context.Context) error {
		_, err := a.Op(ctx, to, "aten::add", x, y)
		return err
	}
}

// variant is a way to call a sum, with the prefix of its metrics.
type variant struct {
	name string
	call func(context.Context) error
}

func addVariants(t testing.TB, a *agent.Agent, to agent.To) []variant {
	return []variant{{"", callAdd(t, a, to)}, {"aten-", callAten(t, a, to)}, {"plain-", callAddBy(t, Plain, a, to)}}
}

func report(b *testing.B, t Times, what string) {
	b.ReportMetric(float64(t.P50.Nanoseconds())/1000, what+"p50-us")
	b.ReportMetric(float64(t.P90.Nanoseconds())/1000, what+"p90-us")
	b.ReportMetric(float64(t.P99.Nanoseconds())/1000, what+"p99-us")
	b.ReportMetric(t.PerSecond, what+"calls/s")
	b.ReportMetric(0, "ns/op")
}

// TestMeasures tests that everything that the benchmarks measure works: sequential and concurrent
// calls of each variant, equal sums of the operator and of the function, and a round trip over a
// plain pipe.
func TestMeasures(t *testing.T) {
	a := group(t, 3, "")
	for _, to := range []agent.To{"worker1", "worker2"} {
		for _, w := range addVariants(t, a, to) {
			times, err := Sequential(t.Context(), 1, 10, w.call)
			require.NoError(t, err)
			require.Positive(t, times.P50)
			times, err = concurrent(t.Context(), 4, 40, w.call)
			require.NoError(t, err)
			require.Positive(t, times.PerSecond)
		}
	}
	sum, err := agent.One[*tensor.Tensor](a.Op(t.Context(), "worker1", "aten::add", ones(t, 2, 2), ones(t, 2, 2)))
	require.NoError(t, err)
	plain, err := Plain.Call(t.Context(), a, "worker1", Pair{ones(t, 2, 2), ones(t, 2, 2)})
	require.NoError(t, err)
	same, err := tensor.Equal(sum, plain)
	require.NoError(t, err)
	require.True(t, same, "%v and %v", sum, plain)
	p := barePipeTo(t, a)
	require.NoError(t, pipeRoundTrip(t.Context(), p, ones(t, 1<<20)))
}

func barePipeTo(t testing.TB, a *agent.Agent) *pipe.Pipe {
	t.Helper()
	url, err := Bare.Call(t.Context(), a, "worker1", agent.None{})
	require.NoError(t, err)
	c, err := tensorpipe.NewContext(pipe.Options{Name: "bench"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	p, err := c.Dial(t.Context(), url)
	require.NoError(t, err)
	return p
}

// BenchmarkAdd measures calls that add two tensors of 2x2 at the other process: 20,000 one after
// the other, and 100,000 with 64 in flight, over each transport.
func BenchmarkAdd(b *testing.B) {
	for _, path := range paths {
		b.Run("transport="+path.name, func(b *testing.B) {
			a := group(b, 2, path.listen)
			b.ReportAllocs()
			for b.Loop() {
				times, err := Sequential(b.Context(), 500, 20_000, callAdd(b, a, "worker1"))
				require.NoError(b, err)
				report(b, times, "")
				times, err = concurrent(b.Context(), 64, 100_000, callAdd(b, a, "worker1"))
				require.NoError(b, err)
				b.ReportMetric(times.PerSecond, "64-in-flight-calls/s")
			}
		})
	}
}

// BenchmarkTwoWorkers measures calls that one worker makes alternately to two others, in three
// processes, over each transport.
func BenchmarkTwoWorkers(b *testing.B) {
	for _, path := range paths {
		b.Run("transport="+path.name, func(b *testing.B) {
			a := group(b, 3, path.listen)
			first, second := callAdd(b, a, "worker1"), callAdd(b, a, "worker2")
			for b.Loop() {
				times, err := Sequential(b.Context(), 500, 20_000, func(ctx context.Context) error {
					first, second = second, first
					return first(ctx)
				})
				require.NoError(b, err)
				report(b, times, "")
			}
		})
	}
}

// BenchmarkLarge measures calls with a large tensor as argument, alternately with sending the same
// tensor over a plain pipe. It reports the rate of the calls, and its ratio to the rate of the
// pipe, as medians of many short pairs.
func BenchmarkLarge(b *testing.B) {
	for _, path := range paths {
		for _, mib := range []int{1, 64} {
			b.Run(fmt.Sprintf("transport=%s/MiB=%d", path.name, mib), func(b *testing.B) {
				a := group(b, 2, path.listen)
				p := barePipeTo(b, a)
				x := ones(b, mib<<18)
				n := max(8, 200/mib)
				call := func(ctx context.Context) error {
					_, err := Take.Call(ctx, a, "worker1", x)
					return err
				}
				bare := func(ctx context.Context) error { return pipeRoundTrip(ctx, p, x) }
				for b.Loop() {
					var ratios, rates []float64
					for range 21 {
						called, err := Sequential(b.Context(), 2, n, call)
						require.NoError(b, err)
						plain, err := Sequential(b.Context(), 2, n, bare)
						require.NoError(b, err)
						ratios = append(ratios, float64(plain.P50)/float64(called.P50))
						rates = append(rates, float64(mib<<20)/float64(called.P50))
					}
					b.ReportMetric(median(ratios), "of-bare-pipe")
					b.ReportMetric(median(rates), "GB/s")
					b.ReportMetric(0, "ns/op")
				}
			})
		}
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// BenchmarkVersus compares calls with those of other libraries, alternately, in five pairs: by a
// short function, by the operator aten::add as rpc_sync(torch.add) does it, and by a plain
// function. A ratio of times is the median over the pairs of the other library's time divided by
// this one's, a ratio of rates that of this library's rate divided by the other's.
func BenchmarkVersus(b *testing.B) {
	for _, c := range []struct{ peer, over, listen string }{
		{"torch", rpcpeer.Default, ""}, {"torch", rpcpeer.TCP, overTCP},
		{"grpc", rpcpeer.Unix, ""}, {"grpc", rpcpeer.TCP, overTCP},
	} {
		b.Run(fmt.Sprintf("peer=%s/over=%s", c.peer, c.over), func(b *testing.B) {
			peer := findPeer(b, c.peer)
			a := group(b, 2, c.listen)
			for b.Loop() {
				versus(b, a, peer, c.over)
			}
		})
	}
}

func findPeer(b *testing.B, name string) *rpcpeer.Peer {
	var peer *rpcpeer.Peer
	var err error
	if name == "torch" {
		peer, err = rpcpeer.Torch(b.Context())
	} else {
		peer, err = rpcpeer.GRPC(b.Context(), b.TempDir())
	}
	if errors.Is(err, errors.ErrUnsupported) {
		b.Skip(err)
	}
	require.NoError(b, err)
	return peer
}

// samples are measured values by metric.
type samples map[string][]float64

func (s samples) add(name string, v float64) { s[name] = append(s[name], v) }

func versus(b *testing.B, a *agent.Agent, peer *rpcpeer.Peer, over string) {
	ways, large, s := addVariants(b, a, "worker1"), ones(b, 16<<20), samples{}
	for range 5 {
		r, err := peer.Run(b.Context(), rpcpeer.Config{Over: over, Jobs: []rpcpeer.Job{rpcpeer.Add(1, 3000), rpcpeer.Add(64, 20_000), rpcpeer.Bytes(64<<20, 10)}})
		require.NoError(b, err)
		s.add("peer-p50-us", r[0].P50)
		s.add("peer-calls/s", r[1].PerSecond)
		for _, w := range ways {
			s.compare(b, w, r[0].P50, r[1].PerSecond)
		}
		big, err := Sequential(b.Context(), 3, 10, func(ctx context.Context) error {
			_, err := Take.Call(ctx, a, "worker1", large)
			return err
		})
		require.NoError(b, err)
		rate := float64(64<<20) * big.PerSecond
		s.add("64MiB-GB/s", rate/1e9)
		s.add("peer-64MiB-GB/s", r[2].BytesPerSecond/1e9)
		s.add("times-64MiB", rate/r[2].BytesPerSecond)
	}
	for name, v := range s {
		b.ReportMetric(median(v), name)
	}
	b.ReportMetric(0, "ns/op")
}

// compare measures the variant w, and adds to s its time of a call, its rate with 64 calls in
// flight, and their ratios to the figures of a peer: p50, the peer's time in microseconds, divided
// by that of w, and the rate of w divided by perSecond, that of the peer. It fails the benchmark if
// a call fails.
func (s samples) compare(b *testing.B, w variant, p50, perSecond float64) {
	single, err := Sequential(b.Context(), 500, 20_000, w.call)
	require.NoError(b, err)
	flight, err := concurrent(b.Context(), 64, 50_000, w.call)
	require.NoError(b, err)
	us := float64(single.P50) / float64(time.Microsecond)
	s.add(w.name+"p50-us", us)
	s.add(w.name+"times-faster", p50/us)
	s.add(w.name+"calls/s", flight.PerSecond)
	s.add(w.name+"times-calls/s", flight.PerSecond/perSecond)
}
