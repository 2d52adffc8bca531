package future_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

var errLost = errors.New("the worker is lost")

// requireOutcome waits for f and fails the test unless Wait and Result return the value want and an
// error that matches wantErr, nil for none, and Err, Done and IsDone agree with them.
func requireOutcome[T any](t *testing.T, f *future.Future[T], want T, wantErr error) {
	t.Helper()
	v, err := f.Wait(t.Context())
	require.Equal(t, want, v)
	if wantErr == nil {
		require.NoError(t, err)
	} else {
		require.ErrorIs(t, err, wantErr)
	}
	require.True(t, f.IsDone())
	<-f.Done()
	require.Equal(t, err, f.Err())
	v, again := f.Result()
	require.Equal(t, want, v)
	require.Equal(t, err, again)
}

func TestCompletedOnce(t *testing.T) {
	ways := []struct {
		name     string
		complete func(*future.Future[int]) error
		value    int
		err      error
	}{
		{"Set", func(f *future.Future[int]) error { return f.Set(7) }, 7, nil},
		{"SetOn", func(f *future.Future[int]) error { return f.SetOn(8) }, 8, nil},
		{"Fail", func(f *future.Future[int]) error { return f.Fail(errLost) }, 0, errLost},
		{"Cancel", func(f *future.Future[int]) error {
			if !f.Cancel(io.EOF) {
				return future.ErrDone
			}
			return nil
		}, 0, io.EOF},
	}
	for _, first := range ways {
		for _, second := range ways {
			t.Run(first.name+" then "+second.name, func(t *testing.T) {
				f := future.New[int]()
				require.NoError(t, first.complete(f))
				requireOutcome(t, f, first.value, first.err)
				require.ErrorIs(t, second.complete(f), future.ErrDone)
				requireOutcome(t, f, first.value, first.err)
			})
		}
	}
}

func TestPending(t *testing.T) {
	for name, f := range map[string]*future.Future[string]{"New": future.New[string](), "zero": {}} {
		t.Run(name, func(t *testing.T) {
			require.False(t, f.IsDone())
			require.ErrorIs(t, f.Err(), future.ErrPending)
			_, err := f.Result()
			require.ErrorIs(t, err, future.ErrPending)
			require.ErrorIs(t, f.Order(nil), future.ErrPending)
			done := f.Done()
			select {
			case <-done:
				t.Fatal("done too early")
			default:
			}
			require.NoError(t, f.Set("x"))
			<-done
			require.Equal(t, done, f.Done(), "always the same channel")
			requireOutcome(t, f, "x", nil)
		})
	}
}

func TestAlreadyDone(t *testing.T) {
	requireOutcome(t, future.Of(3), 3, nil)
	requireOutcome(t, future.Failed[int](errLost), 0, errLost)
	requireOutcome(t, future.Failed[int](nil), 0, future.ErrNilError)
	require.ErrorIs(t, future.Of(3).Set(4), future.ErrDone)
}

func TestFailWithoutError(t *testing.T) {
	f := future.New[int]()
	require.ErrorIs(t, f.Fail(nil), future.ErrNilError)
	requireOutcome(t, f, 0, future.ErrNilError)
	require.ErrorIs(t, f.Fail(nil), future.ErrDone)
}

// TestWaitTwice checks that after WaitAll has returned the error of a failed future, Wait of each
// of the failed futures returns its error again.
func TestWaitTwice(t *testing.T) {
	fs := make([]*future.Future[int], 20)
	for i := range fs {
		fs[i] = future.New[int]()
		go func() { _ = fs[i].Fail(errLost) }()
	}
	_, err := future.WaitAll(t.Context(), fs...)
	require.ErrorIs(t, err, errLost)
	for _, f := range fs {
		requireOutcome(t, f, 0, errLost)
	}
}

// TestWaitEndsWithContext checks that Wait returns the context's error when the context ends, and
// the future stays pending. If the future is done, Wait returns its value although the context has
// ended.
func TestWaitEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := future.New[int]()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		_, err := f.Wait(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, future.ErrTimeout)
		require.Equal(t, time.Minute, time.Since(begin))
		require.False(t, f.IsDone())

		cancelled, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := f.Wait(cancelled)
			ended <- err
		}()
		synctest.Wait()
		cancel()
		require.Equal(t, context.Canceled, <-ended)

		require.NoError(t, f.Set(1))
		for range 100 { // select alone would choose at random
			v, err := f.Wait(cancelled)
			require.NoError(t, err, "a completed future takes precedence over an ended context")
			require.Equal(t, 1, v)
			require.NoError(t, future.Await(cancelled, f))
			require.NoError(t, future.Settle(cancelled, f))
		}
	})
}

// TestRace checks that if many goroutines complete and cancel a future and wait for it at once,
// exactly one completion succeeds, and all that wait get its result.
func TestRace(t *testing.T) {
	for range 50 {
		var notified atomic.Int32
		f := future.NewWith[int](future.Options{OnCancel: func(error) { notified.Add(1) }})
		var won, cancelled, called atomic.Int32
		var everybody sync.WaitGroup
		outcomes := make(chan [2]any, 64)
		see := func(v int, err error) { outcomes <- [2]any{v, err} }
		count := func(n *atomic.Int32, ok bool) {
			if ok {
				n.Add(1)
			}
		}
		for i := range 4 {
			everybody.Go(func() { count(&won, f.Set(i) == nil) })
			everybody.Go(func() { count(&won, f.Fail(errLost) == nil) })
			everybody.Go(func() { count(&cancelled, f.Cancel(io.EOF)) })
			everybody.Go(func() { see(f.Wait(t.Context())) })
			everybody.Go(func() { <-f.Done(); see(f.Result()) })
			everybody.Go(func() {
				see(future.Then(f, func(f *future.Future[int]) (int, error) { return f.Result() }).Wait(t.Context()))
			})
			everybody.Go(func() {
				ran := make(chan struct{})
				_ = f.OnDone(func(*future.Future[int]) { called.Add(1); close(ran) })
				<-ran
			})
			everybody.Go(func() {
				_, err := future.All(f, f).Wait(t.Context())
				assert.Equal(t, f.Err(), err)
			})
			everybody.Go(func() {
				err := future.Await(t.Context(), f, f)
				assert.Equal(t, f.Err(), err)
			})
		}
		everybody.Wait()
		close(outcomes)
		require.EqualValues(t, 1, won.Load()+cancelled.Load())
		require.Equal(t, cancelled.Load(), notified.Load())
		require.EqualValues(t, 4, called.Load())
		v, err := f.Result()
		seen := 0
		for o := range outcomes {
			require.Equal(t, [2]any{v, err}, o)
			seen++
		}
		require.Equal(t, 12, seen)
		require.Zero(t, f.Watchers())
	}
}
