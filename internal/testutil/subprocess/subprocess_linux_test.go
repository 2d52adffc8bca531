package subprocess_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// A system call that the child has denied fails there with the chosen error, and still succeeds in
// the parent.
func TestDenyCall(t *testing.T) {
	if !subprocess.InChild(t) {
		_, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
		require.NoError(t, err)
		return
	}
	require.NoError(t, subprocess.DenySyscall(unix.SYS_GETPRIORITY, unix.EXDEV))
	_, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	require.ErrorIs(t, err, unix.EXDEV)
}

// A system call that is denied with conditions fails only if all its arguments fulfil them.
func TestDenyArguments(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	process := int(unix.PRIO_PROCESS)
	self := os.Getpid()
	require.NoError(t, subprocess.DenySyscall(unix.SYS_GETPRIORITY, unix.EXDEV,
		subprocess.Argument{Number: 0, Value: uint32(process)}, subprocess.Argument{Number: 1, Value: uint32(self)}))
	_, err := unix.Getpriority(process, self)
	require.ErrorIs(t, err, unix.EXDEV)
	_, err = unix.Getpriority(process, 0)
	require.NoError(t, err)
	_, err = unix.Getpriority(unix.PRIO_USER, self) // there may be no such user, hence another error
	require.NotErrorIs(t, err, unix.EXDEV)
}

// InChild skips the test in the parent if the test was skipped in the child.
func TestSkippedInChild(t *testing.T) {
	skipped := false
	t.Run("inner", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		if subprocess.InChild(t) {
			t.Skip("for a reason")
		}
	})
	require.True(t, skipped)
}
