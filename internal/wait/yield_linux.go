package wait

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// offer gives the processor to another thread that wants it, if there is one. It
// is raw: the runtime keeps thread and goroutine together.
func offer() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// stepAside moves the thread to another processor, if it may run on one. It is no use
// to sleep for a moment: where the processors of a small machine were busy lately, the
// kernel does not look for one that is free but wakes a thread where it was.
func stepAside() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var allowed unix.CPUSet
	here, err := processor()
	if err != nil || unix.SchedGetaffinity(0, &allowed) != nil || allowed.Count() < 2 {
		return
	}
	elsewhere := allowed
	elsewhere.Clear(here)
	_ = unix.SchedSetaffinity(0, &elsewhere) // where that is forbidden it stays
	restore(&allowed)
}

// restore lets the thread run wherever it was allowed to, for a moment everywhere. So one
// that nobody had tied is not tied from now on: it gets what its group of processes gets
// later.
func restore(allowed *unix.CPUSet) {
	var all, now unix.CPUSet
	all.Fill()
	_ = unix.SchedSetaffinity(0, &all)
	if unix.SchedGetaffinity(0, &now) != nil || now != *allowed {
		_ = unix.SchedSetaffinity(0, allowed)
	}
}

// processor is the one that the thread runs on.
func processor() (int, error) {
	var cpu uint32
	_, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(cpu), nil
}
