package wait

import "golang.org/x/sys/unix"

// offer gives the processor to another thread that wants it, if there is one. It
// is raw: the runtime keeps thread and goroutine together.
func offer() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
