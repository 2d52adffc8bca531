package segment_test

import (
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/alone"
	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

// sent sends files through a Unix socket, and returns what arrives where want are due.
// before is done when they are on the way.
func sent(t *testing.T, want int, before func(), files ...*os.File) ([]*os.File, error) {
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

// passed is a descriptor after its way through a Unix socket.
func passed(t *testing.T, f *os.File) *os.File {
	t.Helper()
	files, err := sent(t, 1, func() {}, f)
	require.NoError(t, err)
	return files[0]
}

// A peer that sends too few files, or too many, is to blame, and leaves none behind.
func TestOtherNumberOfFiles(t *testing.T) {
	leakcheck.Check(t)
	f := created(t, segment.Create, 4096).File()
	for _, n := range []int{0, 1, 3, 4, 5, 20} {
		files, err := sent(t, 2, func() {}, slices.Repeat([]*os.File{f}, n)...)
		require.ErrorIs(t, err, segment.ErrFile, n)
		require.Empty(t, files)
	}
}

// Whoever has no room for all of the files that came is told so, and keeps none.
func TestNoDescriptorLeftForFiles(t *testing.T) {
	if !alone.Here(t) {
		return
	}
	leakcheck.Check(t)
	f := created(t, segment.Create, 4096).File()
	for room := range 5 {
		t.Run(strconv.Itoa(room), func(t *testing.T) {
			full := func() { limit(t, unix.RLIMIT_NOFILE, beyond(t, room)) }
			files, err := sent(t, 4, full, slices.Repeat([]*os.File{f}, 4)...)
			if room == 4 {
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

// beyond is the limit of open files that leaves room for n more.
func beyond(t *testing.T, n int) uint64 {
	t.Helper()
	end := uint64(0)
	for free := 0; free < n; end++ {
		if _, err := unix.FcntlInt(uintptr(end), unix.F_GETFD, 0); err != nil {
			free++
		}
	}
	return end
}
