//go:build unix

package testwait

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// cpuTime returns the user and system time that this process has used since its start, or 0 if the
// system does not report it.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// StopProcess sends SIGSTOP to p, a child of this process, and returns when all its threads have
// stopped. It fails the test, as Fatal does, if the child has exited or cannot be signalled.
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
