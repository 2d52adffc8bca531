package cma

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// slow is a crew of four at most, whose pace has one copy, and of which no chunk ends
// before the test ends it.
type slow struct {
	*crew
	begun chan underWay
}

// underWay is a chunk that a worker copies.
type underWay struct {
	piece
	end func()
}

func slowCrew(t *testing.T) slow {
	t.Helper()
	var workers sync.WaitGroup
	s := slow{newCrew(make(chan struct{}, 3), workers.Go), make(chan underWay, 16)}
	s.copy = func(_ *reader, p piece) error {
		over := make(chan struct{})
		s.begun <- underWay{p, sync.OnceFunc(func() { close(over) })}
		<-over
		return nil
	}
	same := rate{mean: 1, n: 16}
	s.pace = pace{rates: []rate{same, same, same}, turns: tryFor}
	t.Cleanup(func() {
		s.close()
		workers.Wait()
	})
	return s
}

// give starts a job of one chunk.
func (s slow) give() *job { return s.giveUntil(func(error) {}) }

func (s slow) giveUntil(finished func(error)) *job {
	j := &job{dst: device.Bytes(make([]byte, chunk)), finished: finished}
	s.start(j)
	return j
}

// Where one worker is enough, another one takes a job at once when that one has to
// finish his, which may take long.
func TestWorkerThatFinishesWakesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowCrew(t)
		finished := make(chan struct{})
		s.giveUntil(func(error) { <-finished })
		first := <-s.begun
		next := s.give()
		synctest.Wait()
		require.Empty(t, s.begun, "one is enough")
		first.end()
		synctest.Wait()
		require.Len(t, s.begun, 1)
		second := <-s.begun
		require.Same(t, next, second.job)
		second.end()
		close(finished)
	})
}

// A chunk that does not end keeps others waiting no longer than that takes to be known,
// be it one of many jobs, and from then on nobody counts it.
func TestChunkThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowCrew(t)
		s.give()
		stuck := []underWay{<-s.begun}
		for range 2 {
			begin := time.Now()
			s.give()
			stuck = append(stuck, <-s.begun)
			require.Equal(t, stuckAfter, time.Since(begin))
		}
		s.give()
		last := <-s.begun
		require.Equal(t, 1, last.beside)
		s.give()
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

// Of jobs that come at once each is begun, though a single worker was idle then and the
// first of them never ends.
func TestJobsAtOnceBehindOneThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowCrew(t)
		s.give()
		(<-s.begun).end()
		synctest.Wait()
		require.Equal(t, 1, s.idle)
		begin := time.Now()
		s.give()
		s.give()
		s.give()
		var all []underWay
		for i := range 3 {
			all = append(all, <-s.begun)
			require.Equal(t, time.Duration(i)*stuckAfter, time.Since(begin))
		}
		require.Equal(t, 3, s.workers)
		for _, p := range all {
			p.end()
		}
	})
}

// There are no more workers than slots: with all of them stuck a job waits until one is not.
func TestAllWorkersAreStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowCrew(t)
		var stuck []underWay
		for range 4 {
			s.give()
			stuck = append(stuck, <-s.begun)
		}
		s.give()
		<-time.NewTimer(10 * stuckAfter).C
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

// The alarm that was set for one chunk is good for the one behind it.
func TestChunkThatIsStuckBehindAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowCrew(t)
		s.give()
		first := <-s.begun
		s.give()
		<-time.NewTimer(stuckAfter / 2).C
		first.end()
		second := <-s.begun
		begin := time.Now()
		s.give()
		third := <-s.begun
		require.Equal(t, 3*stuckAfter/2, time.Since(begin))
		second.end()
		third.end()
	})
}

// A chunk that waits for its slot when it is found stuck does not count when it begins.
func TestChunkThatIsStuckBeforeItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowCrew(t)
		s.own <- struct{}{}
		for range cap(s.slots) {
			s.slots <- struct{}{}
		}
		late := s.give()
		next := s.give()
		<-time.NewTimer(2 * stuckAfter).C
		for i, j := range []*job{late, next} {
			<-s.slots
			p := <-s.begun
			require.Same(t, j, p.job)
			require.Equal(t, i, s.copying)
			defer p.end()
		}
		for range cap(s.slots) - 2 {
			<-s.slots
		}
		<-s.own
	})
}
