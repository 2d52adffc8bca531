package segment_test

import (
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
)

// passFiles sends files in one message of a Unix socket, calls before, receives the message with
// space for want files, and returns the results of Received.
func passFiles(t *testing.T, want int, before func(), files ...*os.File) ([]*os.File, error) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	require.NoError(t, unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fds...), nil, 0))
	before()

	rights := make([]byte, unix.CmsgSpace(want*4))
	_, n, flags, _, err := unix.Recvmsg(pair[1], make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC)
	require.NoError(t, err)
	return segment.Received(rights[:n], flags, want)
}

// passFile sends f through a Unix socket and returns the file that was received. The caller closes
// it.
func passFile(t *testing.T, f *os.File) *os.File {
	t.Helper()
	files, err := passFiles(t, 1, func() {}, f)
	require.NoError(t, err)
	return files[0]
}

// A peer that sends too few or too many files is at fault, and no file stays open.
func TestWrongNumberOfFiles(t *testing.T) {
	leakcheck.Check(t)
	f := newTestSegment(t, segment.Create, 4096).File()
	for _, n := range []int{0, 1, 3, 4, 5, 20} {
		files, err := passFiles(t, 2, func() {}, slices.Repeat([]*os.File{f}, n)...)
		require.ErrorIs(t, err, segment.ErrFile, n)
		require.Empty(t, files)
	}
}

// Received returns EMFILE if the process cannot receive all files, and no file stays open.
func TestNoDescriptorLeftForFiles(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	leakcheck.Check(t)
	f := newTestSegment(t, segment.Create, 4096).File()
	for remaining := range 5 {
		t.Run(strconv.Itoa(remaining), func(t *testing.T) {
			full := func() { limit(t, unix.RLIMIT_NOFILE, descriptorLimit(t, remaining)) }
			files, err := passFiles(t, 4, full, slices.Repeat([]*os.File{f}, 4)...)
			if remaining == 4 {
				require.NoError(t, err)
				for _, f := range files {
					require.NoError(t, f.Close())
				}
				return
			}
			require.ErrorIs(t, err, syscall.EMFILE)
			require.ErrorContains(t, err, "RLIMIT_NOFILE")
		})
	}
}

// descriptorLimit returns the value of RLIMIT_NOFILE with which this process can open n more files.
func descriptorLimit(t *testing.T, n int) uint64 {
	t.Helper()
	end := uint64(0)
	for free := 0; free < n; end++ {
		if _, err := unix.FcntlInt(uintptr(end), unix.F_GETFD, 0); err != nil {
			free++
		}
	}
	return end
}
