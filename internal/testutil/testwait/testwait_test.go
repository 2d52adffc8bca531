package testwait_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// recorder is a test that records its failures.
type recorder struct {
	testing.TB
	cleanups []func()

	mu       sync.Mutex
	failures string
}

func (w *recorder) Helper()                           {}
func (w *recorder) Name() string                      { return "recorder" }
func (w *recorder) Cleanup(f func())                  { w.cleanups = append(w.cleanups, f) }
func (w *recorder) Errorf(format string, args ...any) { w.record(fmt.Sprintf(format, args...)) }
func (w *recorder) Fatal(args ...any)                 { w.record(fmt.Sprint(args...)); runtime.Goexit() }

func (w *recorder) record(s string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures += s
}

func (w *recorder) recorded() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failures
}

func (w *recorder) runCleanups() {
	for _, f := range w.cleanups {
		f()
	}
}

// closer reports its Close by closing the channel.
type closer chan struct{}

func (o closer) Close() error { close(o); return nil }

func TestFinishReturnsTheResult(t *testing.T) {
	require.Equal(t, 7, testwait.Finish(t, testwait.Start(func() int { return 7 })))
}

func TestFinishFailsAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &recorder{}
		begun := time.Now()
		go testwait.Finish(w, make(chan int))
		time.Sleep(testwait.Limit - 1)
		synctest.Wait()
		require.Empty(t, w.recorded())
		time.Sleep(time.Until(begun.Add(testwait.Limit)))
		synctest.Wait()
		require.Contains(t, w.recorded(), "still waiting")
	})
}

func TestWatchdogClosesAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &recorder{}
		watchdog := testwait.Watch(w, time.Second)
		early, late := make(closer), make(closer)
		watchdog.CloseOnTimeout(early)
		ctx, free := watchdog.Context(t.Context())
		defer free()

		time.Sleep(time.Second - 1)
		synctest.Wait()
		require.Empty(t, w.recorded())
		require.NoError(t, ctx.Err())

		<-early
		synctest.Wait()
		require.Equal(t, context.Canceled, context.Cause(ctx))
		require.Contains(t, w.recorded(), "not over after 1s")
		watchdog.CloseOnTimeout(late)
		<-late
		w.runCleanups()
	})
}

func TestWatchdogIgnoresTestsWithinTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &recorder{}
		watchdog := testwait.Watch(w, 0)
		watchdog.CloseOnTimeout(make(closer))
		w.runCleanups()
		time.Sleep(10 * testwait.TestLimit)
		require.Empty(t, w.recorded())
	})
}

func TestContextEndsWithItsParent(t *testing.T) {
	watchdog := testwait.Watch(t, 0)
	parent, cancel := context.WithCancel(t.Context())
	ctx, free := watchdog.Context(parent)
	defer free()
	cancel()
	<-ctx.Done()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
}
