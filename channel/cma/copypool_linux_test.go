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
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// newTestPool returns a pool whose workers the cleanup of the test waits for.
func newTestPool(t *testing.T, workers int) *copyPool {
	t.Helper()
	var all sync.WaitGroup
	c := newCopyPool(make(chan struct{}, workers-1), all.Go)
	t.Cleanup(func() {
		c.close()
		all.Wait()
	})
	return c
}

// copying returns a task that copies src within this process.
func copying(src []byte) (j *copyTask, dst []byte, done chan error) {
	dst, done = make([]byte, len(src)), make(chan error, 2)
	return &copyTask{
		pid:      os.Getpid(),
		dst:      device.Bytes(dst),
		src:      []segment{segmentOf(src)},
		finished: func(err error) { done <- err },
	}, dst, done
}

// Tasks of all sizes at once, with fewer and with more workers than chunks.
func TestCopyPool(t *testing.T) {
	for _, workers := range []int{1, 2, 7} {
		c := newTestPool(t, workers)
		var all []chan error
		var pairs [][2][]byte
		for i, size := range []int{5*chunkSize + 3, 1, chunkSize, chunkSize + 1, chunkSize - 1, 3 * chunkSize} {
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
		require.Zero(t, c.tasks.Len())
	}
}

// A task that fails does not affect other tasks.
func TestCopyPoolFault(t *testing.T) {
	c := newTestPool(t, 2)
	bad, _, failed := copying(make([]byte, 20*chunkSize))
	bad.src[0].address = 8
	good, _, done := copying(make([]byte, 20*chunkSize))
	c.start(bad)
	c.start(good)
	require.ErrorIs(t, <-failed, syscall.EFAULT)
	require.NoError(t, <-done)
	require.Empty(t, failed)
}

// While all slots are taken nothing is copied, and a task that no worker has begun is stopped at once.
func TestCopyPoolStop(t *testing.T) {
	c := newTestPool(t, 1)
	enough := errors.New("enough")
	src := bytes.Repeat([]byte{1}, 9*chunkSize)
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
	require.Equal(t, src[:chunkSize], oneDst[:chunkSize])
	require.Equal(t, make([]byte, 8*chunkSize), oneDst[chunkSize:])
	require.Equal(t, make([]byte, 9*chunkSize), otherDst)
	require.Empty(t, otherDone)
	require.False(t, c.stop(one, enough), "it is over")
}

// A worker that waits for a slot does not count as copying: no rate is recorded for two workers if only
// one can copy.
func TestWaitingWorkerIsNotMeasured(t *testing.T) {
	c := newTestPool(t, 2)
	c.own <- struct{}{}
	j, _, done := copying(make([]byte, 20*chunkSize))
	c.start(j)
	require.NoError(t, <-done)
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Len(t, c.tuner.rates, 1)
	require.Equal(t, meanWindow, c.tuner.rates[0].n)
}

// If the first of two tasks started together stalls, another worker copies the second.
func TestTasksStartedTogether(t *testing.T) {
	c := newTestPool(t, 4)
	first, _, done := copying(make([]byte, chunkSize))
	c.start(first)
	require.NoError(t, <-done)
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.idle == 1
	}, testwait.Limit, time.Millisecond)
	w := Withhold(t, chunkSize)
	stuck, _, stuckDone := copying(w.Memory)
	good, _, goodDone := copying(make([]byte, chunkSize))
	c.start(stuck)
	c.start(good)
	require.NoError(t, testwait.Finish(t, goodDone))
	require.Empty(t, stuckDone)
	w.Release()
	require.NoError(t, <-stuckDone)
}

// If the tuner allows two workers they copy concurrently.
func TestTwoWorkersCopyAtOnce(t *testing.T) {
	c := newTestPool(t, 2)
	c.stallDetector.init(func() {})    // would start another worker
	c.tuner.chunkCount = exploreChunks // without measurements all may work
	w := Withhold(t, 2*chunkSize)
	j, _, done := copying(w.Memory)
	c.start(j)
	chunks := map[int]bool{}
	for range 2 {
		chunks[w.Touched(t)/chunkSize] = true
	}
	require.Len(t, chunks, 2)
	require.Empty(t, done)
	w.Release()
	require.NoError(t, <-done)
}
