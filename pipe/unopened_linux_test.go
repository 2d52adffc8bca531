package pipe_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/internal/alone"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// A process that may have no more descriptors has room for the pipe, and for fewer lanes
// than it wants.
func TestLanesWithoutDescriptors(t *testing.T) {
	if !alone.Here(t) {
		return
	}
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	few := syscall.Rlimit{Cur: uint64(len(open)) + 40, Max: before.Max}
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))

	lanes := mpt.Lanes{Count: 64, Transport: uv.New()}
	client, server := laned(t, lanes, lanes)
	blames(t, client, server, syscall.EMFILE)
}
