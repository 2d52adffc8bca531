package filetransfer

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// smallDisk mounts a file system of 1 MiB until the end of the test, and returns its directory. It
// skips the test if mounting is not permitted.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	return dir
}

// TestDiskTooSmall checks that a transfer of more bytes than the disk has free is rejected, and
// leaves no files.
func TestDiskTooSmall(t *testing.T) { eachDialect(t, testDiskTooSmall) }

func testDiskTooSmall(t *testing.T, dialect pipe.Dialect) {
	dir := smallDisk(t)
	store, err := OpenStore(dir, StoreOptions{})
	require.NoError(t, err)
	defer store.Close()
	path := filepath.Join(t.TempDir(), oneName)
	writeFile(t, path, heap("big", 2<<20))
	require.ErrorContains(t, move(t, dialect, store, path), "the disk has 1048576 left")
	require.Empty(t, tree(t, dir))
}

// TestDiskFills checks that a transfer during which the disk becomes full fails at both ends, and
// leaves no files.
func TestDiskFills(t *testing.T) { eachDialect(t, testDiskFills) }

func testDiskFills(t *testing.T, dialect pipe.Dialect) {
	dir := smallDisk(t)
	store, err := OpenStore(dir, StoreOptions{})
	require.NoError(t, err)
	defer store.Close()
	path := filepath.Join(t.TempDir(), oneName)
	writeFile(t, path, heap("big", 300<<10, 300<<10))
	list, err := Gather([]string{path}, false)
	require.NoError(t, err)
	other := filepath.Join(dir, "other")
	sender, receiver := ends(t, dialect)
	got := startReceive(t.Context(), store, receiver, &log{onAccepted: func() { writeFile(t, other, make([]byte, 600<<10)) }})
	err = Send(t.Context(), sender, list, SendOptions{}, NoWatcher{})
	require.ErrorContains(t, err, "no space left on device")
	require.ErrorIs(t, testwait.Finish(t, got), syscall.ENOSPC)
	require.NoError(t, os.Remove(other))
	require.Empty(t, tree(t, dir))
	require.NoError(t, move(t, dialect, store, path))
}
