//go:build invariants

package step

import (
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
)

// plan is what the environment says about this process.
type plan struct {
	counts bool
	fatal  int64 // 0 is never
}

// It does not change, and only a test sets it.
var (
	planned = read(os.Getenv(Variable))
	passed  atomic.Int64
)

func read(value string) plan {
	at, err := strconv.ParseInt(value, 10, 64)
	return plan{counts: err == nil, fatal: at}
}

// Here is a point at which a process may die.
func Here() {
	if planned.counts && passed.Add(1) == planned.fatal {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}

// Passed is how many points the process has come by.
func Passed() int64 { return passed.Load() }
