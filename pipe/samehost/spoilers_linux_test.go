package samehost_test

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// spoilers take away from this process what it needs to be read, or to read.
var spoilers = map[string]func() error{
	"nothing":  func() error { return nil },
	"dumpable": func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) },
	"readv":    func() error { return forbid(unix.SYS_PROCESS_VM_READV) },
}

// forbid has a system call fail with EPERM in all threads of this process.
func forbid(call uint32) error {
	const numberOf = 0 // in struct seccomp_data
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: numberOf},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	runtime.LockOSThread() // to have both calls in one thread, from where they reach the others
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return errno
	}
	return nil
}
