package alone

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Argument is what an argument of a system call must be, as far as its lower 32 bits
// tell. The first has the number 0.
type Argument struct {
	Number int
	Value  uint32
}

// Where struct seccomp_data has the number of the call and its arguments, of 8 bytes
// each. All machines that this is compiled for are little-endian.
const (
	numberAt    = 0
	argumentsAt = 16
)

// Forbid has a system call with such arguments fail for that reason, in all threads of
// this process and of those that it starts, for good.
func Forbid(call uint32, reason syscall.Errno, arguments ...Argument) error {
	program := filter(call, reason, arguments)
	loaded := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	runtime.LockOSThread() // to have both calls in one thread, from where they reach the others
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

// filter compares one word after the other. The first that differs goes to the end,
// where the call is allowed.
func filter(call uint32, reason syscall.Errno, arguments []Argument) []unix.SockFilter {
	words := append(make([][2]uint32, 0, 1+len(arguments)), [2]uint32{numberAt, call})
	for _, a := range arguments {
		words = append(words, [2]uint32{argumentsAt + 8*uint32(a.Number), a.Value})
	}
	var program []unix.SockFilter
	for i, w := range words {
		behind := uint8(2*(len(words)-1-i) + 1) // instructions between this and the last one
		program = append(program,
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: w[0]},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: w[1], Jf: behind})
	}
	return append(program,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(reason)},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
}
