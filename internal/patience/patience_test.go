package patience_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// watchee stands for a test that is watched, and notes what befalls it.
type watchee struct {
	testing.TB
	cleanups []func()

	mu    sync.Mutex
	words string
}

func (w *watchee) Helper()                           {}
func (w *watchee) Name() string                      { return "watchee" }
func (w *watchee) Cleanup(f func())                  { w.cleanups = append(w.cleanups, f) }
func (w *watchee) Errorf(format string, args ...any) { w.note(fmt.Sprintf(format, args...)) }
func (w *watchee) Fatal(args ...any)                 { w.note(fmt.Sprint(args...)); runtime.Goexit() }

func (w *watchee) note(s string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.words += s
}

func (w *watchee) said() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.words
}

func (w *watchee) end() {
	for _, f := range w.cleanups {
		f()
	}
}

// opened is something to close.
type opened chan struct{}

func (o opened) Close() error { close(o); return nil }

func TestFinishReturnsTheResult(t *testing.T) {
	require.Equal(t, 7, patience.Finish(t, patience.Start(func() int { return 7 })))
}

func TestFinishGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watchee{}
		begun := time.Now()
		go patience.Finish(w, make(chan int))
		time.Sleep(patience.Limit - 1)
		synctest.Wait()
		require.Empty(t, w.said())
		time.Sleep(time.Until(begun.Add(patience.Limit)))
		synctest.Wait()
		require.Contains(t, w.said(), "still waiting")
	})
}

func TestWatchdogClosesWhatIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watchee{}
		dog := patience.Watch(w, time.Second)
		early, late := make(opened), make(opened)
		dog.Guard(early)
		ctx, free := dog.Bound(t.Context())
		defer free()

		time.Sleep(time.Second - 1)
		synctest.Wait()
		require.Empty(t, w.said())
		require.NoError(t, ctx.Err())

		<-early
		synctest.Wait()
		require.Equal(t, context.Canceled, context.Cause(ctx))
		require.Contains(t, w.said(), "not over after 1s")
		dog.Guard(late)
		<-late
		w.end()
	})
}

func TestWatchdogLeavesTestsInTimeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watchee{}
		dog := patience.Watch(w, 0)
		dog.Guard(make(opened))
		w.end()
		time.Sleep(10 * patience.TestLimit)
		require.Empty(t, w.said())
	})
}

func TestBoundEndsWithItsParent(t *testing.T) {
	dog := patience.Watch(t, 0)
	parent, cancel := context.WithCancel(t.Context())
	ctx, free := dog.Bound(parent)
	defer free()
	cancel()
	<-ctx.Done()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
}
