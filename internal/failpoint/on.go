//go:build invariants

package failpoint

import (
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
)

// settings is the value of Variable.
type settings struct {
	enabled bool
	killAt  int64 // 0 for never
}

// config is read once, when the process starts.
var (
	config = read(os.Getenv(Variable))
	count  atomic.Int64
)

func read(value string) settings {
	at, err := strconv.ParseInt(value, 10, 64)
	return settings{enabled: err == nil, killAt: at}
}

// Here is a failpoint, a point at which a test can kill the process. It counts the calls, and kills
// the process with SIGKILL if [Variable] has chosen this one. Without Variable it does nothing.
func Here() {
	if config.enabled && count.Add(1) == config.killAt {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}

// Count returns how many failpoints this process has passed. It is 0 without [Variable].
func Count() int64 { return count.Load() }
