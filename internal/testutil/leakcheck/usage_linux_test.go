package leakcheck

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMainFindsDescriptor(t *testing.T) {
	out, err := certainVictim(t, "descriptor")
	require.Error(t, err, out)
	require.Contains(t, out, "leakcheck: descriptors: 1 more of socket:[")
}

func TestMainFindsMapping(t *testing.T) {
	out, err := certainVictim(t, "mapping")
	require.Error(t, err, out)
	require.Contains(t, out, "leakcheck: mapped bytes: 8192 more of /dev/zero")
}

func TestCheckFindsDescriptor(t *testing.T) {
	settleBriefly(t)
	var checked recorder
	Check(&checked)
	fd, err := syscall.Open(os.Args[0], syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	require.NoError(t, err)
	checked.finish()
	require.NoError(t, syscall.Close(fd))
	require.Len(t, checked.errors, 1)
}

// Leaks does not report files that the caller declares to be kept.
func TestKeptFiles(t *testing.T) {
	start := Begin()
	fd, err := syscall.Open(os.Args[0], syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.Empty(t, start.Leaks("/no file", filepath.Dir(os.Args[0])))
	require.NoError(t, syscall.Close(fd))
}

// Check does not report the descriptors that the Go runtime opens at the first use of a pollable
// file.
func TestPollerIsNoLeak(t *testing.T) {
	var checked recorder
	Check(&checked)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.SetDeadline(time.Unix(1, 0)))
	_, err = r.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, r.Close())
	require.NoError(t, w.Close())
	checked.finish()
	require.Empty(t, checked.errors)
}

func TestMappedFiles(t *testing.T) {
	const maps = `00400000-00500000 r-xp 00000000 08:01 42 /bin/program
00500000-00501000 rw-p 00100000 08:01 42 /bin/program
7f0000000000-7f0000002000 rw-s 00000000 00:01 77 /memfd:ring (deleted)
7f0000002000-7f0000003000 r--s 00002000 00:01 77 /memfd:ring (deleted)
7f0000010000-7f0000020000 rw-p 00000000 00:00 0
7f0000020000-7f0000021000 rw-p 00000000 00:00 0 [heap]
7f0000030000-7f0000031000 rw-p 00000000 00:00 0 [anon: Go: heap]
zzz-yyy rw-p 00000000 00:00 9 /broken/addresses
`
	require.Equal(t, map[string]int{"/memfd:ring (deleted)": 3 * 4096}, mappedFiles(maps))
}

func TestInUseFindsMappedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	p, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ, syscall.MAP_PRIVATE)
	require.NoError(t, err)
	require.Equal(t, 4096, inUse().mapped[path])
	require.NoError(t, syscall.Munmap(p))
	require.NotContains(t, inUse().mapped, path)
}

// leakDescriptor opens a socket pair and never closes its two descriptors.
func leakDescriptor(t *testing.T) {
	_, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
}

// leakMapping maps shared memory and never unmaps it.
func leakMapping(t *testing.T) {
	_, err := syscall.Mmap(-1, 0, 8192, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_ANON)
	require.NoError(t, err)
}
