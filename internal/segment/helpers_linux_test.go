package segment_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func openFile(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0)
	require.NoError(t, err)
	return f
}

// reopenMemory returns a file of shared memory that was opened again with these flags of open(2).
// The caller closes it.
func reopenMemory(t *testing.T, flags int) *os.File {
	t.Helper()
	f := memfd(t, 0, 4096)
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), flags|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	return os.NewFile(uintptr(fd), "reopened")
}

func writeSealed(t *testing.T) *os.File {
	t.Helper()
	f := memfd(t, unix.MFD_ALLOW_SEALING, 4096)
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	require.NoError(t, err)
	return f
}

func socket(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	return os.NewFile(uintptr(fd), "socket")
}
