package pipe_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// The process has descriptors for the pipe, but not for all of its lanes.
func TestLanesWithoutDescriptors(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	few := syscall.Rlimit{Cur: uint64(len(open)) + 40, Max: before.Max}
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))

	lanes := mpt.Lanes{Count: 64, Transport: uv.New()}
	client, server := connectLanes(t, lanes, lanes)
	requireUnopened(t, client, server, syscall.EMFILE)
}
