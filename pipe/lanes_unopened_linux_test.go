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

// TestLanesWithoutDescriptors checks that if a process has file descriptors for a pipe but not for
// all lanes of its channel mpt_uv, the pipe fails with ErrUnopened and EMFILE, and the peer
// receives this reason.
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
