package wait

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever spins with the only processor lets others run before long.
func TestYielderLetsGoroutinesRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var y Yielder
	for range 3 {
		var ran atomic.Bool
		go ran.Store(true)
		// The runtime may have something else to run first.
		for i := 0; i < 16*lookAround && !ran.Load(); i++ {
			y.Yield()
		}
		require.True(t, ran.Load())
	}
}
