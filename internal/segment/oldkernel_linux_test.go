package segment_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
)

// Reserve returns an error that matches ErrUnsupported on Linux before 5.14, whose madvise returns
// EINVAL.
func TestReserveOnOldKernel(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	require.NoError(t, subprocess.DenySyscall(unix.SYS_MADVISE, unix.EINVAL, subprocess.Argument{Number: 2, Value: unix.MADV_POPULATE_WRITE}))
	s := newTestSegment(t, segment.CreateSealed, 1<<20)
	err := segment.Reserve(s.Bytes())
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "MADV_POPULATE_WRITE")
	require.NoError(t, segment.Reserve(nil))
	require.NoError(t, segment.Release(s.Bytes()))
	require.Zero(t, resident(t, s))
}
