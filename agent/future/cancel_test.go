package future_test

import (
	"io"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

func TestCancel(t *testing.T) {
	var causes []error
	o := future.Options{OnCancel: func(cause error) { causes = append(causes, cause) }}

	f := future.NewWith[int](o)
	require.True(t, f.Cancel(errLost))
	requireOutcome(t, f, 0, errLost)
	requireOutcome(t, f, 0, future.ErrCancelled)
	require.NotErrorIs(t, f.Err(), io.EOF)
	require.EqualError(t, f.Err(), "future: cancelled: the worker is lost")
	require.False(t, f.Cancel(io.EOF))
	require.Equal(t, []error{errLost}, causes, "OnCancel is called once")

	f = future.NewWith[int](o)
	require.True(t, f.Cancel(nil))
	requireOutcome(t, f, 0, future.ErrCancelled)
	require.Equal(t, []error{errLost, future.ErrCancelled}, causes)
}

func TestCancelOfDone(t *testing.T) {
	f := future.NewWith[int](future.Options{OnCancel: func(error) { t.Error("called although f was done") }})
	require.NoError(t, f.Set(1))
	require.False(t, f.Cancel(errLost))
	requireOutcome(t, f, 1, nil)
}

// TestOnCancelRunsOutsideOfLocks checks that OnCancel may call methods of the future, which is done
// by then.
func TestOnCancelRunsOutsideOfLocks(t *testing.T) {
	var f *future.Future[int]
	f = future.NewWith[int](future.Options{OnCancel: func(error) {
		require.True(t, f.IsDone())
		require.ErrorIs(t, f.Set(1), future.ErrDone)
		require.False(t, f.Cancel(io.EOF))
	}})
	require.True(t, f.Cancel(errLost))
}

func TestPanicInOnCancel(t *testing.T) {
	var got *future.PanicError
	f := future.NewWith[int](future.Options{
		OnCancel: func(error) { panic("oops") },
		OnPanic:  func(p *future.PanicError) { got = p },
	})
	require.True(t, f.Cancel(errLost))
	require.Equal(t, "oops", got.Value)
	requireOutcome(t, f, 0, errLost)
}

// TestCancelRace checks that of many concurrent calls of Cancel exactly one returns true, and
// OnCancel is called once.
func TestCancelRace(t *testing.T) {
	notified := 0
	f := future.NewWith[int](future.Options{OnCancel: func(error) { notified++ }})
	cancelled := make(chan bool, 16)
	var all sync.WaitGroup
	for range cap(cancelled) {
		all.Go(func() { cancelled <- f.Cancel(errLost) })
	}
	all.Wait()
	close(cancelled)
	won := 0
	for ok := range cancelled {
		if ok {
			won++
		}
	}
	require.Equal(t, 1, won)
	require.Equal(t, 1, notified)
}

// TestDoneFutureReleasesProducer checks that a completed future does not keep the memory reachable
// to which its OnCancel refers.
func TestDoneFutureReleasesProducer(t *testing.T) {
	collected := make(chan struct{})
	f := func() *future.Future[int] {
		call := new([1024]int)
		runtime.AddCleanup(call, func(done chan struct{}) { close(done) }, collected)
		return future.NewWith[int](future.Options{OnCancel: func(error) { call[0]++ }})
	}()
	require.NoError(t, f.Set(1))
	for {
		select {
		case <-collected:
			requireOutcome(t, f, 1, nil)
			return
		default:
			runtime.GC()
		}
	}
}
