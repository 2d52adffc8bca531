package deadline_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/deadline"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// isClosed reports whether c is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestZeroValueNeverPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deadline.Deadline
		time.Sleep(time.Hour)
		require.False(t, d.Passed())
		require.False(t, isClosed(d.Done()))
	})
}

func TestPassesAtItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deadline.Deadline
		began := time.Now()
		d.Set(began.Add(time.Minute))
		require.False(t, d.Passed())
		<-d.Done()
		require.Equal(t, time.Minute, time.Since(began))
		require.True(t, d.Passed())
	})
}

func TestPastPassesAtOnce(t *testing.T) {
	var d deadline.Deadline
	before := d.Done()
	d.Set(time.Unix(1, 0))
	require.True(t, d.Passed())
	require.True(t, isClosed(before))
	require.True(t, isClosed(d.Done()))
	d.Set(time.Unix(2, 0))
	require.True(t, d.Passed())
	require.True(t, isClosed(d.Done()))
}

// A blocked call observes a new deadline, unless the old one had passed before.
func TestSetWhileBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deadline.Deadline
		began := time.Now()
		d.Set(began.Add(time.Minute))
		done := d.Done()
		d.Set(began.Add(time.Hour))
		<-done
		require.Equal(t, time.Hour, time.Since(began))

		d.Set(time.Time{})
		require.False(t, d.Passed())
		require.False(t, isClosed(d.Done()), "a new channel")
		require.True(t, isClosed(done))

		d.Set(time.Now().Add(time.Minute))
		d.Set(time.Time{})
		time.Sleep(time.Hour)
		require.False(t, d.Passed())
	})
}

func TestWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		woken := make(chan bool, 10) // what Passed reported at each call
		var d deadline.Deadline
		d.Wake = func() { woken <- d.Passed() }
		d.Set(time.Now().Add(time.Minute))
		time.Sleep(time.Hour)
		synctest.Wait()
		d.Set(time.Time{})
		d.Set(time.Unix(1, 0))
		for _, passed := range []bool{false, true, false, true} {
			require.Equal(t, passed, <-woken)
		}
		require.Empty(t, woken)
	})
}

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deadline.Deadline
		d.Set(time.Now().Add(time.Minute))
		d.Stop()
		time.Sleep(time.Hour)
		require.False(t, d.Passed())
		d.Set(time.Now().Add(time.Minute))
		time.Sleep(time.Hour)
		d.Set(time.Unix(1, 0))
		require.False(t, d.Passed())
		require.False(t, isClosed(d.Done()))
	})
}

// After concurrent calls of Set and expiring timers, a Deadline has the state of the last Set.
func TestConcurrentSet(t *testing.T) {
	var d deadline.Deadline
	d.Wake = func() {}
	var setters sync.WaitGroup
	for range 4 {
		setters.Go(func() {
			for i := range 1000 {
				d.Set(time.Now().Add(time.Duration(i%3) * time.Microsecond))
				d.Done()
				d.Passed()
			}
		})
	}
	setters.Wait()
	d.Set(time.Time{})
	require.False(t, d.Passed())
	require.False(t, isClosed(d.Done()))
	d.Set(time.Now().Add(time.Microsecond))
	<-d.Done()
	require.True(t, d.Passed())
}
