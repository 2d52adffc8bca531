package segment_test

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

// newTestSegment calls make with size and returns the segment, which is closed when the test ends.
func newTestSegment(t testing.TB, make func(int) (*segment.Segment, error), size int) *segment.Segment {
	t.Helper()
	s, err := make(size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

var makers = map[string]func(int) (*segment.Segment, error){"plain": segment.Create, "sealed": segment.CreateSealed}

// Two mappings have the same contents, also after all descriptors are closed.
func TestMappingsShareMemory(t *testing.T) {
	for name, maker := range makers {
		t.Run(name, func(t *testing.T) {
			leakcheck.Check(t)
			for _, size := range []int{1, 40, 4096, 20 << 20} {
				s := newTestSegment(t, maker, size)
				other, err := segment.Map(s.File(), int64(size))
				require.NoError(t, err)
				require.NoError(t, s.CloseFile())
				require.Nil(t, s.File())
				require.Nil(t, other.File())
				require.Len(t, s.Bytes(), size)
				require.Len(t, other.Bytes(), size)
				require.Equal(t, name == "sealed", s.Sealed())
				require.Equal(t, name == "sealed", other.Sealed())

				require.Zero(t, other.Bytes()[size-1])
				s.Bytes()[size-1] = 7
				require.EqualValues(t, 7, other.Bytes()[size-1])
				require.NoError(t, other.Close())
				require.NoError(t, other.Close())
				require.Nil(t, other.Bytes())
				require.EqualValues(t, 7, s.Bytes()[size-1])
			}
		})
	}
}

// File returns a descriptor that is closed on exec, and all pages of the file are reserved.
func TestFile(t *testing.T) {
	s := newTestSegment(t, segment.Create, 1<<20)
	fd := s.File().Fd()
	flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0)
	require.NoError(t, err)
	require.Equal(t, unix.FD_CLOEXEC, flags)
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(fd), &st))
	require.EqualValues(t, 1<<20, st.Size)
	require.EqualValues(t, 1<<20, st.Blocks*512)
	link, err := os.Readlink(filepath.Join("/proc/self/fd", strconv.Itoa(int(fd))))
	require.NoError(t, err)
	require.Equal(t, "/memfd:tensorpipe_shm (deleted)", link)
}

// No process can change the size of a sealed segment or add seals.
func TestSeals(t *testing.T) {
	s := newTestSegment(t, segment.CreateSealed, 8192)
	for _, size := range []int64{0, 4096, 1 << 20} {
		require.ErrorIs(t, s.File().Truncate(size), syscall.EPERM)
	}
	_, err := unix.FcntlInt(s.File().Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	require.ErrorIs(t, err, syscall.EPERM)
}

// Sealed returns false for a file to which the peer could still add seals, and for one of which
// only the growth is sealed.
func TestPartlySealed(t *testing.T) {
	f := memfd(t, unix.MFD_ALLOW_SEALING, 4096)
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW)
	require.NoError(t, err)
	s, err := segment.Map(f, 4096)
	require.NoError(t, err)
	defer s.Close()
	require.False(t, s.Sealed())
}

func TestSizes(t *testing.T) {
	for _, maker := range makers {
		for _, size := range []int{0, -1, math.MinInt} {
			_, err := maker(size)
			require.Equal(t, &segment.SizeError{Size: int64(size), Limit: math.MaxInt}, err)
		}
	}
	f := memfd(t, 0, 4096)
	for _, limit := range []int64{4095, 0, -1, math.MinInt64} {
		_, err := segment.Map(f, limit)
		require.Equal(t, &segment.SizeError{Size: 4096, Limit: limit}, err)
	}
	_, err := segment.Map(memfd(t, 0, 0), 4096)
	require.Equal(t, &segment.SizeError{Limit: 4096}, err)
	_, err = segment.Map(memfd(t, 0, 1<<62), 1<<30) // a sparse file
	require.Equal(t, &segment.SizeError{Size: 1 << 62, Limit: 1 << 30}, err)
	_, err = segment.Map(memfd(t, 0, 1<<62), math.MaxInt64)
	require.ErrorIs(t, err, syscall.ENOMEM)
}

func memfd(t *testing.T, flags int, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", flags|unix.MFD_CLOEXEC)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	require.NoError(t, f.Truncate(size))
	return f
}

// Map of a descriptor that is no shared memory, or cannot be mapped for writing, returns the right
// error.
func TestForeignDescriptors(t *testing.T) {
	leakcheck.Check(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	closed, err := os.Open("/dev/null")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	for name, c := range map[string]struct {
		file *os.File
		want error
	}{
		"pipe":               {r, segment.ErrFile},
		"directory":          {openFile(t, "/dev/shm", os.O_RDONLY), segment.ErrFile},
		"device":             {openFile(t, "/dev/null", os.O_RDWR), segment.ErrFile},
		"file of the kernel": {openFile(t, "/proc/self/maps", os.O_RDONLY), segment.ErrFile},
		"read only":          {reopenMemory(t, unix.O_RDONLY), syscall.EACCES},
		"write only":         {reopenMemory(t, unix.O_WRONLY), syscall.EACCES},
		"path only":          {reopenMemory(t, unix.O_PATH), syscall.EBADF},
		"socket":             {socket(t), segment.ErrFile},
		"sealed for writes":  {writeSealed(t), syscall.EPERM},
		"closed":             {closed, os.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			defer c.file.Close()
			_, err := segment.Map(c.file, math.MaxInt64)
			require.ErrorIs(t, err, c.want)
		})
	}
	_, err = segment.Map(nil, 1)
	require.ErrorIs(t, err, os.ErrInvalid)
}

// Map rejects files of huge pages with ErrFile: such pages can be exhausted at an access even if
// the size is sealed.
func TestHugePages(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_HUGETLB|unix.MFD_CLOEXEC)
	if err != nil {
		t.Skip("no files of huge pages on this machine: ", err)
	}
	f := os.NewFile(uintptr(fd), "test")
	defer f.Close()
	require.NoError(t, f.Truncate(1<<30))
	_, err = segment.Map(f, math.MaxInt64)
	require.ErrorIs(t, err, segment.ErrFile)
}
