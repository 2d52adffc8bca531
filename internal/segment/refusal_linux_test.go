package segment_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
)

// limit sets the soft limit of a resource (RLIMIT_) of this process to value, until the test ends.
func limit(t *testing.T, resource int, value uint64) {
	t.Helper()
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(resource, &before))
	require.NoError(t, unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: before.Max}))
	t.Cleanup(func() { require.NoError(t, unix.Setrlimit(resource, &before)) })
}

// requireRefused checks that creating segments of that size fails with an *Error of the system call
// named call, which matches reason and ErrResource.
func requireRefused(t *testing.T, size int, call string, reason error) {
	t.Helper()
	for _, maker := range makers {
		_, err := maker(size)
		require.ErrorIs(t, err, reason)
		refusal, ok := errors.AsType[*segment.Error](err)
		require.True(t, ok, err)
		require.Equal(t, call, refusal.Call)
		require.EqualValues(t, size, refusal.Size)
		require.ErrorIs(t, err, probe.ErrResource)
	}
}

func TestNoDescriptorLeft(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	leakcheck.Check(t)
	limit(t, unix.RLIMIT_NOFILE, 0)
	requireRefused(t, 4096, "memfd_create", syscall.EMFILE)
	_, err := segment.Create(4096)
	require.ErrorContains(t, err, "RLIMIT_NOFILE")
}

// Creating a segment beyond the limit of file sizes fails with EFBIG. The signal for that limit
// does not kill the process.
func TestFileTooLarge(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	leakcheck.Check(t)
	limit(t, unix.RLIMIT_FSIZE, 4096)
	requireRefused(t, 4097, "ftruncate", syscall.EFBIG)
	_, err := segment.Create(1 << 20)
	require.ErrorContains(t, err, "RLIMIT_FSIZE")
	newTestSegment(t, segment.Create, 4096)
}

// If a seccomp filter forbids memfd_create, creating a segment fails with an error that matches
// ErrUnsupported.
func TestFilteredCall(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	require.NoError(t, subprocess.DenySyscall(unix.SYS_MEMFD_CREATE, unix.EPERM))
	for _, maker := range makers {
		_, err := maker(4096)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "memfd_create")
	}
}
