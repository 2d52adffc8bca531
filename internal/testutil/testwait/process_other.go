//go:build !unix

package testwait

import (
	"os"
	"testing"
	"time"
)

// cpuTime returns 0: the time that the process has used is not read on this system.
func cpuTime() time.Duration { return 0 }

// StopProcess skips the test: this system has no signal that stops a process.
func StopProcess(t testing.TB, _ *os.Process) {
	t.Helper()
	t.Skip("no process can be stopped on this system")
}
