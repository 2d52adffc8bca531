package cma

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// stalledPool is a pool of at most four workers whose tuner allows one, and whose copies end when the
// test ends them.
type stalledPool struct {
	*copyPool
	begun chan runningCopy
}

// runningCopy is a chunk that a worker is copying.
type runningCopy struct {
	chunk
	end func()
}

func newStalledPool(t *testing.T) stalledPool {
	t.Helper()
	var workers sync.WaitGroup
	s := stalledPool{newCopyPool(make(chan struct{}, 3), workers.Go), make(chan runningCopy, 16)}
	s.copy = func(_ *reader, p chunk) error {
		over := make(chan struct{})
		s.begun <- runningCopy{p, sync.OnceFunc(func() { close(over) })}
		<-over
		return nil
	}
	same := rate{mean: 1, n: 16}
	s.tuner = tuner{rates: []rate{same, same, same}, chunkCount: exploreChunks}
	t.Cleanup(func() {
		s.close()
		workers.Wait()
	})
	return s
}

// startTask starts a task of one chunk, whose finished function does nothing, and returns it.
func (s stalledPool) startTask() *copyTask { return s.startTaskUntil(func(error) {}) }

func (s stalledPool) startTaskUntil(finished func(error)) *copyTask {
	j := &copyTask{dst: device.Bytes(make([]byte, chunkSize)), finished: func(_ *reader, err error) { finished(err) }}
	s.start(j)
	return j
}

// While a worker runs the finished function of a task, which may take long, another worker copies
// the next task, even if the tuner allows only one copy at a time.
func TestFinishingWorkerWakesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStalledPool(t)
		finished := make(chan struct{})
		s.startTaskUntil(func(error) { <-finished })
		first := <-s.begun
		next := s.startTask()
		synctest.Wait()
		require.Empty(t, s.begun, "one is enough")
		first.end()
		synctest.Wait()
		require.Len(t, s.begun, 1)
		second := <-s.begun
		require.Same(t, next, second.copyTask)
		second.end()
		close(finished)
	})
}

// A chunk whose copy does not end delays other tasks by stallTimeout at most, also if several
// chunks have stalled before. Stalled chunks are not counted as running, neither before nor after
// their copies end.
func TestStalledChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStalledPool(t)
		s.startTask()
		stuck := []runningCopy{<-s.begun}
		for range 2 {
			begin := time.Now()
			s.startTask()
			stuck = append(stuck, <-s.begun)
			require.Equal(t, stallTimeout, time.Since(begin))
		}
		s.startTask()
		last := <-s.begun
		require.Equal(t, 1, last.concurrent)
		s.startTask()
		synctest.Wait()
		require.Empty(t, s.begun, "one that is not stuck is enough")
		for _, p := range stuck {
			p.end()
		}
		synctest.Wait()
		require.Empty(t, s.begun, "those do not count")
		last.end()
		(<-s.begun).end()
		synctest.Wait()
		require.Zero(t, s.running)
		require.Zero(t, s.copying)
		require.Equal(t, s.workers, s.idle)
	})
}

// Three tasks that are started together all begin, one stallTimeout after the other, although only
// one worker is idle and no copy ends.
func TestTasksAfterStalledTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStalledPool(t)
		s.startTask()
		(<-s.begun).end()
		synctest.Wait()
		require.Equal(t, 1, s.idle)
		begin := time.Now()
		s.startTask()
		s.startTask()
		s.startTask()
		var all []runningCopy
		for i := range 3 {
			all = append(all, <-s.begun)
			require.Equal(t, time.Duration(i)*stallTimeout, time.Since(begin))
		}
		require.Equal(t, 3, s.workers)
		for _, p := range all {
			p.end()
		}
	})
}

// No more workers are started than there are slots: if the copies of all workers have stalled, a
// further task begins only when one of the copies has ended.
func TestAllWorkersStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStalledPool(t)
		var stuck []runningCopy
		for range 4 {
			s.startTask()
			stuck = append(stuck, <-s.begun)
		}
		s.startTask()
		<-time.NewTimer(10 * stallTimeout).C
		require.Empty(t, s.begun)
		stuck[2].end()
		synctest.Wait()
		require.Len(t, s.begun, 1)
		stuck = append(stuck, <-s.begun)
		for _, p := range stuck {
			p.end()
		}
	})
}

// If the stall detector was armed for one chunk, and the next chunk stalls, a further task begins
// within one and a half times stallTimeout.
func TestSecondChunkStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStalledPool(t)
		s.startTask()
		first := <-s.begun
		s.startTask()
		<-time.NewTimer(stallTimeout / 2).C
		first.end()
		second := <-s.begun
		begin := time.Now()
		s.startTask()
		third := <-s.begun
		require.Equal(t, 3*stallTimeout/2, time.Since(begin))
		second.end()
		third.end()
	})
}

// A chunk that was waiting for a slot when it was found stalled is not counted as being copied when
// it gets the slot.
func TestStalledChunkWaitsForSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStalledPool(t)
		s.own <- struct{}{}
		for range cap(s.slots) {
			s.slots <- struct{}{}
		}
		late := s.startTask()
		next := s.startTask()
		<-time.NewTimer(2 * stallTimeout).C
		for i, j := range []*copyTask{late, next} {
			<-s.slots
			p := <-s.begun
			require.Same(t, j, p.copyTask)
			require.Equal(t, i, s.copying)
			defer p.end()
		}
		for range cap(s.slots) - 2 {
			<-s.slots
		}
		<-s.own
	})
}
