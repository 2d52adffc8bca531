package cma

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// team is a crew whose workers the test waits for.
func team(t *testing.T, workers int) *crew {
	t.Helper()
	var all sync.WaitGroup
	c := newCrew(make(chan struct{}, workers-1), all.Go)
	t.Cleanup(func() {
		c.close()
		all.Wait()
	})
	return c
}

// copying is a job that copies src within this process.
func copying(src []byte) (j *job, dst []byte, done chan error) {
	dst, done = make([]byte, len(src)), make(chan error, 2)
	return &job{
		pid:      os.Getpid(),
		dst:      device.Bytes(dst),
		src:      []segment{segmentOf(src)},
		finished: func(err error) { done <- err },
	}, dst, done
}

// Jobs of all sizes at once, by fewer and by more workers than there are chunks.
func TestCrewCopies(t *testing.T) {
	for _, workers := range []int{1, 2, 7} {
		c := team(t, workers)
		var all []chan error
		var pairs [][2][]byte
		for i, size := range []int{5*chunk + 3, 1, chunk, chunk + 1, chunk - 1, 3 * chunk} {
			src := bytes.Repeat([]byte{byte(i + 1), 7, 9}, size)[:size]
			j, dst, done := copying(src)
			c.start(j)
			all, pairs = append(all, done), append(pairs, [2][]byte{src, dst})
		}
		for i, done := range all {
			require.NoError(t, <-done)
			require.True(t, bytes.Equal(pairs[i][0], pairs[i][1]), "job %d", i)
		}
		require.LessOrEqual(t, c.workers, workers)
		require.Zero(t, c.jobs.Len())
	}
}

// A job that cannot be done ends by itself, and disturbs no other.
func TestCrewFault(t *testing.T) {
	c := team(t, 2)
	bad, _, failed := copying(make([]byte, 20*chunk))
	bad.src[0].address = 8
	good, _, done := copying(make([]byte, 20*chunk))
	c.start(bad)
	c.start(good)
	require.ErrorIs(t, <-failed, syscall.EFAULT)
	require.NoError(t, <-done)
	require.Empty(t, failed)
}

// While the slots are taken nothing is copied, and a job that nobody works on can be
// stopped at once.
func TestCrewStops(t *testing.T) {
	c := team(t, 1)
	enough := errors.New("enough")
	src := bytes.Repeat([]byte{1}, 9*chunk)
	one, oneDst, oneDone := copying(src)
	other, otherDst, otherDone := copying(src)
	c.own <- struct{}{}
	c.start(one)
	for {
		c.mu.Lock()
		begun := one.running > 0
		c.mu.Unlock()
		if begun {
			break
		}
		runtime.Gosched()
	}
	c.start(other)
	require.True(t, c.stop(other, enough), "nobody has begun it")
	require.False(t, c.stop(one, enough), "its first chunk is under way")
	require.False(t, c.stop(one, errors.New("more than enough")))
	<-c.own
	require.Equal(t, enough, <-oneDone)
	require.Equal(t, src[:chunk], oneDst[:chunk])
	require.Equal(t, make([]byte, 8*chunk), oneDst[chunk:])
	require.Equal(t, make([]byte, 9*chunk), otherDst)
	require.Empty(t, otherDone)
	require.False(t, c.stop(one, enough), "it is over")
}

// A worker that waits for a slot is not taken for one that copies: nothing is learned of
// two where only one can be at it.
func TestCrewLearnsFromCopies(t *testing.T) {
	c := team(t, 2)
	c.own <- struct{}{}
	j, _, done := copying(make([]byte, 20*chunk))
	c.start(j)
	require.NoError(t, <-done)
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Len(t, c.pace.rates, 1)
	require.Equal(t, recent, c.pace.rates[0].n)
}

// Jobs that come at once are done as if they came one by one: where the first is stuck, and
// with it the only worker, there is another one for the second.
func TestCrewGetsJobsAtOnce(t *testing.T) {
	c := team(t, 4)
	first, _, done := copying(make([]byte, chunk))
	c.start(first)
	require.NoError(t, <-done)
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.idle == 1
	}, patience.Limit, time.Millisecond)
	w := Withhold(t, chunk)
	stuck, _, stuckDone := copying(w.Memory)
	good, _, goodDone := copying(make([]byte, chunk))
	c.start(stuck)
	c.start(good)
	require.NoError(t, patience.Finish(t, goodDone))
	require.Empty(t, stuckDone)
	w.Release()
	require.NoError(t, <-stuckDone)
}
