package segment_test

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
)

// mountSmallMemory mounts a tmpfs of 1 MiB in this process, which must have mount namespaces of its
// own, and returns a new file there. Both are removed when the test ends. It skips the test if the
// machine forbids mounts.
func mountSmallMemory(t *testing.T) *os.File {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m")
	if forbidden(err) {
		t.Skip("this machine lets nobody mount: ", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	f, err := os.CreateTemp(dir, "")
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// useMountNamespace gives a child process namespaces in which it may mount, or skips the test if
// the machine forbids that.
func useMountNamespace(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	own := &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	trial := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	trial.SysProcAttr = own
	if err := trial.Run(); forbidden(err) {
		t.Skip("this machine lets nobody have namespaces: ", err)
	}
	cmd.SysProcAttr = own
}

func forbidden(err error) bool {
	return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENOSPC)
}

// A lack of memory is an error when pages are reserved, not a fault at the first access.
func TestCreateWithoutMemory(t *testing.T) {
	if !subprocess.InChild(t, useMountNamespace) {
		return
	}
	f := mountSmallMemory(t)
	require.NoError(t, segment.ReserveFile(int(f.Fd()), 1<<20))
	err := segment.ReserveFile(int(f.Fd()), 20<<20)
	require.ErrorIs(t, err, syscall.ENOSPC)
	refusal, ok := errors.AsType[*segment.Error](err)
	require.True(t, ok)
	require.Equal(t, "fallocate", refusal.Call)
	require.EqualValues(t, 20<<20, refusal.Size)
}

// A lack of memory is an error of Reserve, not a fault at the first access.
func TestReserveWithoutMemory(t *testing.T) {
	if !subprocess.InChild(t, useMountNamespace) {
		return
	}
	f := mountSmallMemory(t)
	require.NoError(t, f.Truncate(20<<20))
	s, err := segment.Map(f, math.MaxInt64)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, segment.Reserve(s.Bytes()[:1<<20]))
	err = segment.Reserve(s.Bytes())
	refusal, ok := errors.AsType[*segment.Error](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "madvise MADV_POPULATE_WRITE", refusal.Call)
}

// If the system has no memory for a page of a peer's segment, an access to the page within Guard is
// an error.
func TestPeerMemoryWithoutPages(t *testing.T) {
	if !subprocess.InChild(t, useMountNamespace) {
		return
	}
	f := mountSmallMemory(t)
	require.NoError(t, f.Truncate(2<<20))
	s, err := segment.Map(f, math.MaxInt64)
	require.NoError(t, err)
	defer s.Close()
	require.False(t, s.Sealed())
	require.ErrorIs(t, segment.Guard(func() error { clear(s.Bytes()); return nil }, s.Bytes()), segment.ErrFault)
}
