package patience

import (
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// doomed is a test that may fail.
type doomed struct {
	testing.TB
	failed bool
}

func (*doomed) Helper()        {}
func (d *doomed) Fatal(...any) { d.failed = true }

func TestAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		calms := func() time.Duration { return min(time.Since(begin), 3*window) }
		asleep(t, calms)
		require.Equal(t, 4*window, time.Since(begin))

		d := &doomed{TB: t}
		asleep(d, func() time.Duration { return time.Since(begin) / 2 })
		require.True(t, d.failed)
	})
}

// The least of all stretches counts, and the first that is little enough.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		parts []float64 // of each stretch
		want  float64
		taken int
	}{
		{[]float64{0.001, 1, 1}, 0.001, 1},
		{[]float64{0.5, 0.001, 1}, 0.001, 2},
		{append([]float64{0.5, 0.25}, slices.Repeat([]float64{0.75}, stretches-2)...), 0.25, stretches},
	} {
		synctest.Test(t, func(t *testing.T) {
			const stretch = 2 * time.Second
			begin := time.Now()
			got := share(stretch, 0.01, func() (used time.Duration) {
				for _, part := range c.parts[:time.Since(begin)/stretch] {
					used += time.Duration(part * float64(stretch))
				}
				return used
			})
			require.InDelta(t, c.want, got, 1e-9)
			require.Equal(t, time.Duration(c.taken)*stretch, time.Since(begin))
		})
	}
}

// What this process does is counted, and that it does nothing.
func TestUsed(t *testing.T) {
	before := used()
	for used() == before {
		runtime.Gosched() // which is work
	}
	Asleep(t)
}
