package wait

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// offer gives the processor to another thread that wants it, if there is one. It
// is raw: the runtime keeps thread and goroutine together.
func offer() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// aside is how long a thread sleeps to get away from its processor. The kernel wakes
// it on one that is free.
const aside = 20 * time.Microsecond

// stepAside lets the thread sleep for a moment.
func stepAside() {
	ts := unix.NsecToTimespec(int64(aside))
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}
