package segment_test

import (
	"errors"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

// limit sets a limit of this process for the rest of the test.
func limit(t *testing.T, resource int, value uint64) {
	t.Helper()
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(resource, &before))
	require.NoError(t, unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: before.Max}))
	t.Cleanup(func() { require.NoError(t, unix.Setrlimit(resource, &before)) })
}

// requireRefused asks for segments that the system refuses for a reason.
func requireRefused(t *testing.T, size int, call string, reason error) {
	t.Helper()
	for _, maker := range makers {
		_, err := maker(size)
		require.ErrorIs(t, err, reason)
		refusal, ok := errors.AsType[*segment.Error](err)
		require.True(t, ok, err)
		require.Equal(t, call, refusal.Call)
		require.EqualValues(t, size, refusal.Size)
	}
}

func TestNoDescriptorLeft(t *testing.T) {
	if !alone(t) {
		return
	}
	leakcheck.Check(t)
	limit(t, unix.RLIMIT_NOFILE, 0)
	requireRefused(t, 4096, "memfd_create", syscall.EMFILE)
	_, err := segment.Create(4096)
	require.ErrorContains(t, err, "RLIMIT_NOFILE")
}

// The limit of file sizes holds for files in memory, too. The signal that comes
// with it does not end a Go process.
func TestFileTooLarge(t *testing.T) {
	if !alone(t) {
		return
	}
	leakcheck.Check(t)
	limit(t, unix.RLIMIT_FSIZE, 4096)
	requireRefused(t, 4097, "ftruncate", syscall.EFBIG)
	_, err := segment.Create(1 << 20)
	require.ErrorContains(t, err, "RLIMIT_FSIZE")
	created(t, segment.Create, 4096)
}

// A filter on system calls may forbid shared memory altogether.
func TestFilteredCall(t *testing.T) {
	if !alone(t) {
		return
	}
	forbid(t, unix.SYS_MEMFD_CREATE)
	for _, maker := range makers {
		_, err := maker(4096)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "memfd_create")
	}
}

// forbid has a system call fail with EPERM in all threads of this process.
func forbid(t *testing.T, call uint32) {
	t.Helper()
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
	require.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&filter)))
	require.Zero(t, errno)
}
