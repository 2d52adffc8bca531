//go:build linux || darwin

package filetransfer

import (
	"errors"
	"math"
	"os"
	"syscall"
)

// freeBytes returns how many bytes an unprivileged user may still write to the file system of f,
// and true. It returns 0 and false if the file system does not report that.
func freeBytes(f *os.File) (n int, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &s); err != nil || s.Blocks == 0 || s.Bsize <= 0 {
		return 0, false
	}
	size := uint64(s.Bsize)
	return int(min(s.Bavail, math.MaxInt/size) * size), true
}

// lock takes an exclusive lock on f, without waiting. The lock is released when f is closed or this
// process exits. It returns ErrBusy if another open file, also of this process, holds the lock. If
// the file system has no locks, or locking fails for another reason, it returns nil without a lock.
func lock(f *os.File) error {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrBusy
	}
	return nil
}

// soleName reports whether the file that info describes has no other name, that is, no hard link.
func soleName(info os.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && s.Nlink == 1
}
