package cma

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// sparing is a crew whose pace has one worker copy. The workers are the test's.
func sparing() *crew {
	c := newCrew(make(chan struct{}, 3), func(func()) {})
	same := rate{mean: 1, n: 16}
	c.pace = pace{rates: []rate{same, same, same}, turns: tryFor}
	return c
}

// give starts a job of so many chunks, which nobody reads.
func give(c *crew, chunks int) *job {
	j := &job{dst: device.Bytes(make([]byte, chunks*chunk))}
	c.start(j)
	return j
}

// begun is the next chunk that a worker copies.
func begun(c *crew) piece {
	p := c.take()
	c.begin(&p)
	return p
}

// waiting is a worker of the crew that waits for his turn.
func waiting(c *crew) <-chan piece {
	got := make(chan piece, 1)
	go func() { got <- begun(c) }()
	synctest.Wait()
	return got
}

// over ends a chunk, which must be the last of its job.
func over(t *testing.T, c *crew, p piece) {
	t.Helper()
	outcome, over := c.settle(p, time.Millisecond, nil)
	require.True(t, over)
	require.NoError(t, outcome)
}

// Where one worker is enough, another one takes a job at once when that one has to
// finish his, which may take long.
func TestWorkerThatFinishesWakesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := sparing()
		give(c, 1)
		first := begun(c)
		next := give(c, 1)
		got := waiting(c)
		require.Empty(t, got, "one is enough")
		over(t, c, first)
		synctest.Wait()
		require.Len(t, got, 1)
		second := <-got
		require.Same(t, next, second.job)
		over(t, c, second)
	})
}

// A chunk that does not end keeps others waiting no longer than that takes to be known,
// be it one of many jobs, and from then on nobody counts it.
func TestChunkThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := sparing()
		var stuck []piece
		give(c, 1)
		stuck = append(stuck, begun(c))
		for range 2 {
			begin := time.Now()
			give(c, 1)
			stuck = append(stuck, <-waiting(c))
			require.Equal(t, stuckAfter, time.Since(begin))
		}
		give(c, 1)
		last := <-waiting(c)
		require.Equal(t, 1, last.beside)
		give(c, 1)
		got := waiting(c)
		require.Empty(t, got, "one that is not stuck is enough")
		for _, p := range stuck {
			over(t, c, p)
		}
		synctest.Wait()
		require.Empty(t, got, "those do not count")
		over(t, c, last)
		over(t, c, <-got)
		require.Zero(t, c.running)
		require.Zero(t, c.copying)
	})
}

// The alarm that was set for one chunk is good for the one behind it.
func TestChunkThatIsStuckBehindAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := sparing()
		give(c, 1)
		first := begun(c)
		give(c, 1)
		got := waiting(c)
		<-time.NewTimer(stuckAfter / 2).C
		over(t, c, first)
		second := <-got
		begin := time.Now()
		give(c, 1)
		third := <-waiting(c)
		require.Equal(t, 3*stuckAfter/2, time.Since(begin))
		over(t, c, second)
		over(t, c, third)
	})
}

// A chunk that waits for its slot when it is found stuck does not count when it begins.
func TestChunkThatIsStuckBeforeItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := sparing()
		give(c, 1)
		late := c.take()
		give(c, 1)
		next := <-waiting(c)
		c.begin(&late)
		require.Equal(t, 1, c.copying)
		over(t, c, late)
		require.Equal(t, 1, c.copying)
		over(t, c, next)
		require.Zero(t, c.copying)
	})
}
