package future_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// TestRecall checks that while Recall runs, the cancelled future is not done and Cancel blocks;
// after Recall has returned the future fails, and one of two calls of Cancel returns true.
func TestRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back, notified := make(chan struct{}), 0
		f := future.NewWith[int](future.Options{
			Recall: func(cause error) {
				require.ErrorIs(t, cause, errLost)
				<-back
			},
			OnCancel: func(error) { notified++ },
		})
		cancelled := make(chan bool, 2)
		for range cap(cancelled) {
			go func() { cancelled <- f.Cancel(errLost) }()
		}
		synctest.Wait()
		require.False(t, f.IsDone())
		require.Empty(t, cancelled)
		close(back)
		require.NotEqual(t, <-cancelled, <-cancelled, "one of the calls cancelled it")
		requireOutcome(t, f, 0, errLost)
		require.Equal(t, 1, notified)
		require.False(t, f.Cancel(errLost), "Recall is not called for a completed future")
	})
}

// TestValueDuringRecall checks that if the future is completed with a value while Recall runs, it
// keeps the value, and Cancel returns false.
func TestValueDuringRecall(t *testing.T) {
	var f *future.Future[int]
	f = future.NewWith[int](future.Options{Recall: func(error) { require.NoError(t, f.Set(1)) }})
	require.False(t, f.Cancel(errLost))
	requireOutcome(t, f, 1, nil)
}

func TestPanicInRecall(t *testing.T) {
	var got *future.PanicError
	f := future.NewWith[int](future.Options{
		Recall:  func(error) { panic("oops") },
		OnPanic: func(p *future.PanicError) { got = p },
	})
	require.True(t, f.Cancel(errLost))
	require.Equal(t, "oops", got.Value)
}

// activityCounter counts calls of Begin and End.
type activityCounter struct{ now, begun atomic.Int64 }

func (l *activityCounter) Begin() { l.now.Add(1); l.begun.Add(1) }
func (l *activityCounter) End()   { l.now.Add(-1) }

// TestActivity checks that Activity.Begin is called before the call returns that completes a
// future, and as many End as Begin calls have been made after the last callback, those of derived
// futures included, however the callbacks end.
func TestActivity(t *testing.T) {
	for name, complete := range map[string]func(f *future.Future[int]){
		"value":     func(f *future.Future[int]) { _ = f.Set(1) },
		"error":     func(f *future.Future[int]) { _ = f.Fail(errLost) },
		"cancelled": func(f *future.Future[int]) { f.Cancel(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, gates := &activityCounter{}, make(chan struct{})
				f := future.NewWith[int](future.Options{Activity: l})
				hold := func(*future.Future[int]) (int, error) { <-gates; return 0, nil }
				last := future.ThenFuture(future.Then(f, hold), func(*future.Future[int]) (*future.Future[int], error) {
					return future.Of(1), nil
				})
				last = future.Then(last, hold)
				all := future.All(last)
				require.NoError(t, all.OnDone(func(*future.Future[[]*future.Future[int]]) {
					<-gates
					runtime.Goexit()
				}))
				complete(f)
				require.Positive(t, l.now.Load(), "begun before the call returns")
				for range 3 {
					synctest.Wait()
					require.EqualValues(t, 1, l.now.Load())
					gates <- struct{}{}
				}
				synctest.Wait()
				require.Zero(t, l.now.Load())
				require.True(t, all.IsDone())

				require.NoError(t, f.OnDone(func(*future.Future[int]) { <-gates }))
				require.EqualValues(t, 1, l.now.Load(), "for late callbacks too")
				close(gates)
				synctest.Wait()
				require.Zero(t, l.now.Load())
			})
		})
	}
}

// TestActivityWithoutCallbacks checks that Activity.Begin is not called for a future that is
// completed without callbacks.
func TestActivityWithoutCallbacks(t *testing.T) {
	l := &activityCounter{}
	f := future.NewWith[int](future.Options{Activity: l})
	require.NoError(t, f.Set(1))
	require.Zero(t, l.begun.Load())
}
