package wait

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A MemoryPoller polls only if all arrivals of the process were its own for some time.
func TestMemoryPollerSpinsWhenExclusive(t *testing.T) {
	m, other := NewMemoryPoller(time.Hour), NewMemoryPoller(time.Hour)
	never := func() bool { return false }
	require.False(t, m.Poll(never), "nothing has come yet")
	for range exclusiveAfter + 1 {
		m.Arrived()
	}
	polls := 0
	require.True(t, m.Poll(func() bool { polls++; return polls == 3 }))
	require.Equal(t, 3, polls)
	require.False(t, other.Poll(never))
	other.Arrived()
	require.False(t, m.Poll(never), "something came for another")
}

func TestMemoryPollerWithoutSpin(t *testing.T) {
	m := NewMemoryPoller(0)
	for range exclusiveAfter + 1 {
		m.Arrived()
	}
	require.False(t, m.Poll(func() bool { panic("polled") }))
}

// While a goroutine spins on the only processor, calls of Yield let other goroutines run from time
// to time.
func TestYielderLetsGoroutinesRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var y Yielder
	for range 3 {
		var ran atomic.Bool
		go ran.Store(true)
		// The runtime may have something else to run first.
		for i := 0; i < 16*pollsPerGosched && !ran.Load(); i++ {
			y.Yield()
		}
		require.True(t, ran.Load())
	}
}
