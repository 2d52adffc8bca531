package alone_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/alone"
	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// A process of its own has the name of no other, and what is forbidden there is
// allowed here.
func TestForbiddenCall(t *testing.T) {
	if !alone.Here(t) {
		_, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
		require.NoError(t, err)
		return
	}
	require.NoError(t, alone.Forbid(unix.SYS_GETPRIORITY, unix.EXDEV))
	_, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	require.ErrorIs(t, err, unix.EXDEV)
}

// Only calls of which all arguments are those are forbidden.
func TestForbiddenArguments(t *testing.T) {
	if !alone.Here(t) {
		return
	}
	here := int(unix.PRIO_PROCESS)
	self := os.Getpid()
	require.NoError(t, alone.Forbid(unix.SYS_GETPRIORITY, unix.EXDEV,
		alone.Argument{Number: 0, Value: uint32(here)}, alone.Argument{Number: 1, Value: uint32(self)}))
	_, err := unix.Getpriority(here, self)
	require.ErrorIs(t, err, unix.EXDEV)
	_, err = unix.Getpriority(here, 0)
	require.NoError(t, err)
	_, err = unix.Getpriority(unix.PRIO_USER, self) // a user of whom nothing runs, perhaps
	require.NotErrorIs(t, err, unix.EXDEV)
}

// What a test skips for in a process of its own, it is skipped for here.
func TestSkippedAlone(t *testing.T) {
	skipped := false
	t.Run("inner", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		if alone.Here(t) {
			t.Skip("for a reason")
		}
	})
	require.True(t, skipped)
}
