package cma

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Viable names all processes as tracers only if AllowAnyTracer is set and Yama's scope is 1. The
// test makes prctl fail, so that each attempt shows as an error.
func TestAnyTracer(t *testing.T) {
	for _, c := range []struct {
		scope string
		allow bool
		why   string // the reason, empty if viable
	}{
		{"0", false, ""},
		{"0", true, ""},
		{"1", false, "ptrace_scope is 1"},
		{"1", true, "PR_SET_PTRACER_ANY: operation not permitted"},
		{"2", true, "ptrace_scope is 2"},
	} {
		f := New(Options{Root: machine(t, "capability,yama", c.scope), AllowAnyTracer: c.allow})
		tried, err := withoutTracers(f.Viable)
		require.NoError(t, err)
		if c.why == "" {
			require.NoError(t, tried, "scope %s", c.scope)
		} else {
			require.ErrorContains(t, tried, c.why, "scope %s", c.scope)
		}
	}
}

// withoutTracers calls f on a thread of which prctl(PR_SET_PTRACER) fails, and returns the error of
// f as of. If the thread could not be prepared, err is not nil and f was not called. The thread
// ends after that.
func withoutTracers(f func() error) (of, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so that the thread ends
		if err = forbidTracers(); err == nil {
			of = f()
		}
	}()
	<-done
	return of, err
}

// forbidTracers makes prctl(PR_SET_PTRACER) fail with EPERM on this thread, permanently. The error
// is that of the kernel.
func forbidTracers() error {
	const numberOf, firstOf = 0, 16 // in struct seccomp_data
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: numberOf},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PRCTL, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: firstOf},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PR_SET_PTRACER, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
}
