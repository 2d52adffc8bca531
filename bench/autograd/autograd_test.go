package autograd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/bench/internal/rpcpeer"
	"github.com/tensorpipe-go/tensorpipe/bench/rpc"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

func TestMain(m *testing.M) {
	short.SkipPackage("measures between processes")
	shareProcessors()
	if rpc.IsWorker() {
		if err := rpc.RunWorker(context.Background(), os.Stdin, Configure); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leakcheck.Main(m)
}

// shareProcessors leaves half of the processors to the process of the other worker, unless GOMAXPROCS is set.
// PyTorch gets one thread for operators.
func shareProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	}
}

// paths are the connections that are measured: what a peer and tpipe train call them, where workers
// listen, and how metrics of them begin.
var paths = []struct{ over, transport, listen, metric string }{
	{rpcpeer.Default, "shm", "", ""}, {rpcpeer.TCP, "tcp", "uv://127.0.0.1:0", "tcp-"},
}

// start makes this process worker0 of a group of two workers in processes, and returns its loop.
func start(t testing.TB, listen string) *Loop {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	a, stop, err := rpc.Start(t.Context(), path, 2, "tcp://"+freeport.Addr(t), listen, Configure)
	t.Cleanup(func() {
		require.NoError(t, stop()) // this process serves the store
		if a != nil {
			require.NoError(t, a.Close())
		}
	})
	require.NoError(t, err)
	l, err := NewLoop(a)
	require.NoError(t, err)
	return l
}

// times are the durations of iterations and of the passes in them.
type times struct{ iteration, pass rpc.Times }

// measure makes n iterations after some that do not count.
func (l *Loop) measure(t testing.TB, n int) times {
	t.Helper()
	var iterations, passes []time.Duration
	var all time.Duration
	for i := range n + n/10 {
		begun := time.Now()
		pass, err := l.Iterate(t.Context())
		require.NoError(t, err)
		if i >= n/10 {
			iterations, passes = append(iterations, time.Since(begun)), append(passes, pass)
			all += time.Since(begun)
		}
	}
	return times{rpc.Summarize(iterations, all), rpc.Summarize(passes, all)}
}

// TestMeasures checks that everything that the benchmarks compare works.
func TestMeasures(t *testing.T) {
	training, err := NewTraining(t.Context(), t.TempDir())
	require.NoError(t, err)
	for _, path := range paths {
		t.Run("over="+path.over, func(t *testing.T) {
			got := start(t, path.listen).measure(t, 20)
			require.Positive(t, got.pass.P50)
			require.Greater(t, got.iteration.P50, got.pass.P50)
			r, err := training.Run(t.Context(), path.transport, 2)
			require.NoError(t, err)
			require.Equal(t, 90, r.Steps)
			require.Positive(t, r.StepsPerSecond)
			require.GreaterOrEqual(t, r.CallsPerStep(), 7.0)
		})
	}
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

// BenchmarkTrain measures the training without a peer, alternately over each path.
func BenchmarkTrain(b *testing.B) {
	training, err := NewTraining(b.Context(), b.TempDir())
	require.NoError(b, err)
	for b.Loop() {
		s := samples{}
		for range 5 {
			for _, path := range paths {
				r, err := training.Run(b.Context(), path.transport, 30)
				require.NoError(b, err)
				s.add("train-"+path.metric+"steps/s", r.StepsPerSecond)
				s.add("train-"+path.metric+"calls/step", r.CallsPerStep())
			}
		}
		s.report(b)
	}
}

// BenchmarkVersus compares with PyTorch, alternately, in five pairs: steps per second of the training,
// iterations per second of the loop, and the median duration of a pass. A ratio is the median over the
// pairs.
func BenchmarkVersus(b *testing.B) {
	training, err := NewTraining(b.Context(), b.TempDir())
	require.NoError(b, err)
	for _, path := range paths {
		b.Run("peer=torch/over="+path.over, func(b *testing.B) {
			peer, err := rpcpeer.Torch(b.Context())
			if errors.Is(err, errors.ErrUnsupported) {
				b.Skip(err)
			}
			require.NoError(b, err)
			loop := start(b, path.listen)
			for b.Loop() {
				s := samples{}
				for range 5 {
					r, err := peer.Run(b.Context(), rpcpeer.Config{
						Over: path.over, Jobs: []rpcpeer.Job{rpcpeer.Train(10), rpcpeer.EndToEnd(300), rpcpeer.Backward(300)},
					})
					require.NoError(b, err)
					trained, err := training.Run(b.Context(), path.transport, 30)
					require.NoError(b, err)
					got := loop.measure(b, 3000)
					s.add("peer-train-"+path.metric+"steps/s", r[0].PerSecond)
					s.add("train-"+path.metric+"steps/s", trained.StepsPerSecond)
					s.add("train-"+path.metric+"times-faster", trained.StepsPerSecond/r[0].PerSecond)
					s.add("peer-e2e-"+path.metric+"iterations/s", r[1].PerSecond)
					s.add("e2e-"+path.metric+"iterations/s", got.iteration.PerSecond)
					s.add("e2e-"+path.metric+"times-faster", got.iteration.PerSecond/r[1].PerSecond)
					s.add("peer-backward-"+path.metric+"p50-us", r[2].P50)
					s.add("backward-"+path.metric+"p50-us", got.pass.P50.Seconds()*1e6)
					s.add("backward-"+path.metric+"times-faster", r[2].P50/(got.pass.P50.Seconds()*1e6))
				}
				s.report(b)
			}
		})
	}
}
