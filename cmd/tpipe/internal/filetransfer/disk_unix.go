//go:build linux || darwin

package filetransfer

import (
	"errors"
	"math"
	"os"
	"syscall"
)

// freeBytes returns the bytes that a user may still write to the file system of f; known is false if
// the file system does not report them.
func freeBytes(f *os.File) (n int, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &s); err != nil || s.Blocks == 0 || s.Bsize <= 0 {
		return 0, false
	}
	size := uint64(s.Bsize)
	return int(min(s.Bavail, math.MaxInt/size) * size), true
}

// lock locks f until it is closed or this process exits. It returns ErrBusy if another process
// holds the lock, and nil on file systems without locks.
func lock(f *os.File) error {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrBusy
	}
	return nil
}
