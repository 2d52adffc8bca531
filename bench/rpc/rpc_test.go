package rpc

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func TestMain(m *testing.M) {
	if IsWorker() {
		if err := RunWorker(context.Background(), os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leakcheck.Main(m)
}

func group(t testing.TB, world int, listen string) *agent.Agent {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	l.Close()
	path, err := os.Executable()
	require.NoError(t, err)
	a, stop, err := Start(t.Context(), path, world, "tcp://"+addr, listen)
	t.Cleanup(func() {
		require.NoError(t, stop()) // this process serves the store
		if a != nil {
			require.NoError(t, a.Close())
		}
	})
	require.NoError(t, err)
	return a
}

var transports = map[string]string{"shm": "", "uv": "uv://127.0.0.1:0"}

func BenchmarkAdd(b *testing.B) {
	for name, listen := range transports {
		b.Run("transport="+name, func(b *testing.B) {
			a := group(b, 2, listen)
			args := Pair{ones(b, 2, 2), ones(b, 2, 2)}
			ctx := context.Background()
			var took []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				if _, err := Add.Call(ctx, a, "worker1", args); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-us")
		})
	}
}

func BenchmarkInFlight(b *testing.B) {
	for name, listen := range transports {
		b.Run("transport="+name, func(b *testing.B) {
			a := group(b, 2, listen)
			args := Pair{ones(b, 2, 2), ones(b, 2, 2)}
			ctx := context.Background()
			window := make(chan *agent.Future[*tensor.Tensor], 64)
			done := make(chan error, 1)
			go func() {
				for f := range window {
					if _, err := f.Wait(ctx); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			for b.Loop() {
				window <- Add.Go(ctx, a, "worker1", args)
			}
			close(window)
			require.NoError(b, <-done)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}

func BenchmarkInFlightGoroutines(b *testing.B) {
	for name, listen := range transports {
		b.Run("transport="+name, func(b *testing.B) {
			a := group(b, 2, listen)
			args := Pair{ones(b, 2, 2), ones(b, 2, 2)}
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := Add.Call(context.Background(), a, "worker1", args); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}

func ones(t testing.TB, shape ...int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.Zeros(tensor.F32, shape...)
	require.NoError(t, err)
	require.NoError(t, tensor.Fill(x, float32(1)))
	return x
}
