package segment_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/alone"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

// Linux before 5.14 does not know how to set pages aside for memory that is mapped, and
// says EINVAL.
func TestReserveOnAnOldKernel(t *testing.T) {
	if !alone.Here(t) {
		return
	}
	require.NoError(t, alone.Forbid(unix.SYS_MADVISE, unix.EINVAL, alone.Argument{Number: 2, Value: unix.MADV_POPULATE_WRITE}))
	s := created(t, segment.CreateSealed, 1<<20)
	err := segment.Reserve(s.Bytes())
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "MADV_POPULATE_WRITE")
	require.NoError(t, segment.Reserve(nil))
	require.NoError(t, segment.Release(s.Bytes()))
	require.Zero(t, resident(t, s))
}
