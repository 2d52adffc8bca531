package patience

import (
	"runtime"
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

// What this process does is counted, and that it does nothing.
func TestUsed(t *testing.T) {
	before := used()
	for used() == before {
		runtime.Gosched() // which is work
	}
	Asleep(t)
}
