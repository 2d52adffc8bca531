package subprocess

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Argument is a condition on one argument of a system call: its lower 32 bits equal Value. Number is 0
// for the first argument.
type Argument struct {
	Number int
	Value  uint32
}

// Offsets in struct seccomp_data of the system call's number and of its arguments, which have
// 8 bytes each. All supported machines are little-endian.
const (
	numberOffset    = 0
	argumentsOffset = 16
)

// DenySyscall makes the system call with the number call fail with the error reason if its
// arguments fulfil all conditions in arguments. This applies to all threads of this process and to
// processes that it starts later, and cannot be undone. The error is that with which the kernel has
// rejected the filter; nothing is denied then.
func DenySyscall(call uint32, reason syscall.Errno, arguments ...Argument) error {
	program := filter(call, reason, arguments)
	loaded := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	runtime.LockOSThread() // SECCOMP needs NO_NEW_PRIVS, which is set for one thread
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&loaded)))
	if errno != 0 {
		return errno
	}
	return nil
}

// filter returns a seccomp program that makes the system call with the number call fail with reason
// if its arguments fulfil all conditions. The program compares the number and the arguments one
// after the other; at the first difference it jumps to its last instruction, which allows the call.
func filter(call uint32, reason syscall.Errno, arguments []Argument) []unix.SockFilter {
	words := append(make([][2]uint32, 0, 1+len(arguments)), [2]uint32{numberOffset, call})
	for _, a := range arguments {
		words = append(words, [2]uint32{argumentsOffset + 8*uint32(a.Number), a.Value})
	}
	var program []unix.SockFilter
	for i, w := range words {
		skip := uint8(2*(len(words)-1-i) + 1) // instructions between this one and the last
		program = append(program,
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: w[0]},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: w[1], Jf: skip})
	}
	return append(program,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(reason)},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
}
