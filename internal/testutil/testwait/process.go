package testwait

import (
	"os"
	"syscall"
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

// WaitIdle blocks until this process has used hardly any CPU time for a while, which means that all its
// goroutines are blocked and none spins. If that does not happen within [Limit] it ends the test, as
// Fatal does. Other processes of the machine have no influence.
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

// CPUShare returns the fraction of one core that this process uses while the caller is blocked: 0.01 is
// one percent. It measures for the time over, up to ten times, and returns the minimum, or the first
// result below enough, because the runtime and the kernel add to single results.
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

// cpuTime returns the user and system time that this process has used so far, 0 if the system does not
// report it.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// StopProcess sends SIGSTOP to p, a child of this process, and returns after all its threads have
// stopped, which happens some time after the signal. If the child has exited it ends the test, as Fatal
// does.
func StopProcess(t testing.TB, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	err := error(syscall.EINTR)
	for err == syscall.EINTR {
		_, err = syscall.Wait4(p.Pid, &status, syscall.WUNTRACED, nil)
	}
	if err != nil || !status.Stopped() {
		t.Fatalf("the process exited before it could be stopped: %v", err)
	}
}
