package shm

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// withoutPages makes the last page of shared memory one that the system cannot give,
// until the function that it returns puts the page of the file there again.
func withoutPages(t *testing.T, memory []byte, of *os.File) (restore func()) {
	t.Helper()
	empty, err := unix.MemfdCreate("empty", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(empty) })
	page := os.Getpagesize()
	last := len(memory) - page
	place := func(fd int, offset int64) {
		at := unsafe.Pointer(&memory[last])
		_, err := unix.MmapPtr(fd, offset, at, uintptr(page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
		require.NoError(t, err)
	}
	place(empty, 0)
	return func() { place(int(of.Fd()), int64(last)) }
}

// Where pages are missing nothing of a frame leaves, what needs none goes on, and a
// frame that is written again later arrives.
func TestInboxThatGetsNoPages(t *testing.T) {
	leakcheck.Check(t)
	ends, inboxes := inspected(t)
	restore := withoutPages(t, ends[0].theirs.data.Bytes(), inboxes[1])
	small, large := transport.Frame{[]byte("small")}, transport.Frame{[]byte("large"), make([]byte, inboxBegin)}
	for range 2 {
		require.ErrorIs(t, ends[0].WriteFrames(large), unix.EFAULT)
		require.ErrorIs(t, ends[0].WriteFrames(small, large), unix.EFAULT)
	}
	require.NoError(t, ends[0].WriteFrames(small))
	wantFrame(t, ends[1], small[0])

	restore()
	require.NoError(t, ends[0].WriteFrames(large))
	wantFrame(t, ends[1], append([]byte("large"), large[1]...))
	require.Equal(t, inboxSize, resident(t, inboxes[1]))
}

// The same of a stream, which says that it has moved nothing.
func TestStreamThatGetsNoPages(t *testing.T) {
	leakcheck.Check(t)
	ends, inboxes := inspected(t)
	s, err := ends[0].Stream()
	require.NoError(t, err)
	restore := withoutPages(t, ends[0].theirs.data.Bytes(), inboxes[1])
	large := make([]byte, inboxBegin+1)
	for range 2 {
		n, err := s.Write(large)
		require.ErrorIs(t, err, unix.EFAULT)
		require.Zero(t, n)
	}
	restore()
	n, err := s.Write(large)
	require.NoError(t, err)
	require.Len(t, large, n)
}
