package cma

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// newTestPool returns a pool with the given number of slots. At the end of the test the pool is
// closed, and its workers are waited for.
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

// copying returns a task that copies src, memory of this process, to the new memory dst. The
// channel done receives the outcome when the task has finished.
func copying(src []byte) (j *copyTask, dst []byte, done chan error) {
	dst, done = make([]byte, len(src)), make(chan error, 2)
	return &copyTask{
		pid:      os.Getpid(),
		dst:      device.Bytes(dst),
		src:      []segment{segmentOf(src)},
		finished: func(_ *reader, err error) { done <- err },
	}, dst, done
}

// Tasks of all sizes that are started together are copied correctly, with fewer and with more
// workers than chunks, and no more workers are started than there are slots.
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

// A task whose memory is not mapped fails with EFAULT, and finished is called only once for it;
// another task that runs concurrently succeeds.
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

// stop ends a task of which no chunk is being copied at once, and finished is not called for it. A
// task whose first chunk is being copied finishes with the cause of the first stop when the chunk
// has ended; its other chunks are not copied.
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

// If only one slot is free, the tuner records rates for one worker only: a worker that waits for a
// slot does not count as copying.
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

// If the copy of the first of two tasks that were started together stalls, another worker copies
// the second.
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

// If the tuner allows two workers, they copy two chunks of one task concurrently.
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

// Small tasks that are queued while the only worker is busy are copied together, up to the size of
// a chunk. If the memory of one cannot be read, that one fails and the others are copied.
func TestSmallTasksShareACopy(t *testing.T) {
	c := newTestPool(t, 1)
	var copies []chunk
	hold := make(chan struct{})
	copyChunk := c.copy
	c.copy = func(r *reader, p chunk) error {
		<-hold
		p.others = slices.Clone(p.others)
		copies = append(copies, p)
		return copyChunk(r, p)
	}
	const size, count = chunkSize / 4, 9
	var results [count]chan error
	var sources, targets [count][]byte
	for i := range count {
		sources[i] = bytes.Repeat([]byte{byte(i + 1), 7, 9}, size)[:size]
		var j *copyTask
		j, targets[i], results[i] = copying(sources[i])
		if i == 7 {
			j.src[0].address = 8 // nothing is mapped there
		}
		c.start(j)
	}
	close(hold)
	for i, done := range results {
		err := <-done
		require.Equal(t, i == 7, err != nil, "task %d: %v", i, err)
		if err == nil {
			require.True(t, bytes.Equal(sources[i], targets[i]), "task %d", i)
		}
	}
	require.LessOrEqual(t, len(copies), 3+4, "three copies, and one for each of four tasks")
}
