package testwait

import (
	"testing"
	"time"
)

// A process is idle if it uses less than maxIdleTime of CPU time in a window.
const (
	window      = 100 * time.Millisecond
	maxIdleTime = window / 10
)

// maxMeasurements bounds how often CPUShare measures.
const maxMeasurements = 10

// WaitIdle blocks until this process has used hardly any CPU time for 100 ms, which means that all
// its goroutines are blocked and none spins. If that does not happen within [Limit], it fails the
// test, as Fatal does. Other processes of the machine have no influence.
func WaitIdle(t testing.TB) {
	t.Helper()
	waitIdle(t, cpuTime)
}

func waitIdle(t testing.TB, cpuTime func() time.Duration) {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < Limit; {
		before := cpuTime()
		passed := time.NewTimer(window)
		<-passed.C
		if cpuTime()-before < maxIdleTime {
			return
		}
	}
	t.Fatal("the process never became idle: a goroutine spins instead of blocking")
}

// CPUShare blocks for the time over, and returns the fraction of one core that this process has
// used meanwhile: 0.01 is one percent. If the fraction is not below enough, it measures again, up
// to ten times in all, and returns the smallest result, because the runtime and the kernel add to
// single ones.
func CPUShare(over time.Duration, enough float64) float64 { return cpuShare(over, enough, cpuTime) }

func cpuShare(over time.Duration, enough float64, cpuTime func() time.Duration) (least float64) {
	for i := range maxMeasurements {
		before := cpuTime()
		passed := time.NewTimer(over)
		<-passed.C
		share := float64(cpuTime()-before) / float64(over)
		if i == 0 || share < least {
			least = share
		}
		if least < enough {
			break
		}
	}
	return least
}
