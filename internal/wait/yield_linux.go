package wait

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// yieldThread yields the processor to another thread, of any process (sched_yield). The system call
// is raw, so that the runtime does not run another goroutine in place of this one.
func yieldThread() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// migrate moves the calling thread to another processor, if the thread may run on one, and
// otherwise does nothing. Sleeping for a moment would not move it: on a small machine whose
// processors were busy lately the kernel wakes a thread where it was.
func migrate() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var allowed unix.CPUSet
	here, err := processor()
	if err != nil || unix.SchedGetaffinity(0, &allowed) != nil || allowed.Count() < 2 {
		return
	}
	elsewhere := allowed
	elsewhere.Clear(here)
	_ = unix.SchedSetaffinity(0, &elsewhere) // if that is forbidden the thread stays
	restore(&allowed)
}

// restore sets the affinity of the calling thread to allowed. It first permits all processors: if
// the kernel reduces that to allowed, the thread keeps no affinity of its own, so that later
// changes of its cgroup apply to it. Errors of the system calls are ignored.
func restore(allowed *unix.CPUSet) {
	var all, now unix.CPUSet
	all.Fill()
	_ = unix.SchedSetaffinity(0, &all)
	if unix.SchedGetaffinity(0, &now) != nil || now != *allowed {
		_ = unix.SchedSetaffinity(0, allowed)
	}
}

// processor returns the number of the processor on which the calling thread runs. The thread may
// have moved by the time that processor returns. The error is that of getcpu(2).
func processor() (int, error) {
	var cpu uint32
	_, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(cpu), nil
}
