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

	"github.com/tensorpipe-go/tensorpipe/internal/alone"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

// smallMemory mounts memory of 1 MiB in this process, which has namespaces of its
// own, and makes a file there.
func smallMemory(t *testing.T) *os.File {
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

// ownMounts gives a process namespaces in which it may mount, or skips the test on
// a machine that does not allow that.
func ownMounts(t *testing.T, cmd *exec.Cmd) {
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

// Memory that is not there shows when it is set aside, not at the first touch.
func TestReserveWithoutRoom(t *testing.T) {
	if !alone.Here(t, ownMounts) {
		return
	}
	f := smallMemory(t)
	require.NoError(t, segment.SetAside(int(f.Fd()), 1<<20))
	err := segment.SetAside(int(f.Fd()), 20<<20)
	require.ErrorIs(t, err, syscall.ENOSPC)
	refusal, ok := errors.AsType[*segment.Error](err)
	require.True(t, ok)
	require.Equal(t, "fallocate", refusal.Call)
	require.EqualValues(t, 20<<20, refusal.Size)
}

// Nor where it is reserved later.
func TestReserveLaterWithoutRoom(t *testing.T) {
	if !alone.Here(t, ownMounts) {
		return
	}
	f := smallMemory(t)
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

// A peer may send memory that has no room for its pages: to touch those is a
// fault, too.
func TestPeerMemoryWithoutRoom(t *testing.T) {
	if !alone.Here(t, ownMounts) {
		return
	}
	f := smallMemory(t)
	require.NoError(t, f.Truncate(2<<20))
	s, err := segment.Map(f, math.MaxInt64)
	require.NoError(t, err)
	defer s.Close()
	require.False(t, s.Sealed())
	require.ErrorIs(t, segment.Guard(func() error { clear(s.Bytes()); return nil }, s.Bytes()), segment.ErrFault)
}
