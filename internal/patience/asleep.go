package patience

import (
	"syscall"
	"testing"
	"time"
)

// A process sleeps if in a window of time it has used less than this of it.
const (
	window = 100 * time.Millisecond
	idle   = window / 10
)

// Asleep returns when this process has used hardly any CPU time for a while: all
// its goroutines sleep, and none spins. It ends the test, as FailNow does, where
// that does not happen within [Limit]. A busy machine does not matter.
func Asleep(t testing.TB) {
	t.Helper()
	asleep(t, used)
}

func asleep(t testing.TB, used func() time.Duration) {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < Limit; {
		before := used()
		passed := time.NewTimer(window)
		<-passed.C
		if used()-before < idle {
			return
		}
	}
	t.Fatal("busy all the time: somebody spins where he should sleep")
}

// used is the CPU time of this process so far.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
