//go:build linux || darwin

package ferry

import (
	"errors"
	"math"
	"os"
	"syscall"
)

// freeBytes is what a user may still write to the file system that f is on;
// some do not say.
func freeBytes(f *os.File) (n int, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &s); err != nil || s.Blocks == 0 || s.Bsize <= 0 {
		return 0, false
	}
	size := uint64(s.Bsize)
	return int(min(s.Bavail, math.MaxInt/size) * size), true
}

// lock keeps other processes from replacing f, until it is closed or this
// process ends. File systems without locks are taken as they are.
func lock(f *os.File) error {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrBusy
	}
	return nil
}
