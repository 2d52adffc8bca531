package future_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// TestAllocations checks that a future takes at most one allocation if Done is not called before it
// completes, and at most two if it is.
func TestAllocations(t *testing.T) {
	ctx := t.Context()
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		f := future.New[int]()
		_ = f.Set(1)
		_, _ = f.Wait(ctx)
	}), 1.0)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		f := future.New[int]()
		done := f.Done()
		_ = f.Set(1)
		<-done
		_, _ = f.Wait(ctx)
	}), 2.0)
}

func BenchmarkSetWait(b *testing.B) {
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		f := future.New[int]()
		_ = f.Set(1)
		_, _ = f.Wait(ctx)
	}
}

// BenchmarkWaitSet measures Wait on a future that another goroutine completes, including the
// channel of Done.
func BenchmarkWaitSet(b *testing.B) {
	ctx := b.Context()
	work := make(chan *future.Future[int])
	go func() {
		for f := range work {
			_ = f.Set(1)
		}
	}()
	defer close(work)
	b.ReportAllocs()
	for b.Loop() {
		f := future.New[int]()
		_ = f.Done()
		work <- f
		_, _ = f.Wait(ctx)
	}
}

func BenchmarkThen(b *testing.B) {
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		f := future.New[int]()
		next := future.Then(f, plusOne)
		_ = f.Set(1)
		_, _ = next.Wait(ctx)
	}
}

func BenchmarkWaitAll64(b *testing.B) {
	ctx := b.Context()
	fs := make([]*future.Future[int], 64)
	b.ReportAllocs()
	for b.Loop() {
		for i := range fs {
			fs[i] = future.New[int]()
		}
		for _, f := range fs {
			_ = f.Set(1)
		}
		_, _ = future.WaitAll(ctx, fs...)
	}
}
