//go:build linux && (amd64 || arm64)

package filetransfer

import (
	"os"
	"syscall"
)

const (
	keepSize   = 1 // FALLOC_FL_KEEP_SIZE
	startWrite = 2 // SYNC_FILE_RANGE_WRITE
)

// preallocate reserves disk space for the given number of bytes of f and does not change its size.
// It ignores errors: if the disk is full, writing to f reports that.
func preallocate(f *os.File, bytes int) {
	_ = syscall.Fallocate(int(f.Fd()), keepSize, 0, int64(bytes))
}

// startWriteback starts to write n bytes of f at offset to disk. It does not wait until they are
// there, but may wait for space in the queue of the disk. Sync of f reports the errors.
func startWriteback(f *os.File, offset, n int) {
	_ = syscall.SyncFileRange(int(f.Fd()), int64(offset), int64(n), startWrite)
}
