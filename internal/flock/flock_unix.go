//go:build linux || darwin

package flock

import (
	"errors"
	"os"
	"syscall"
)

// Try locks the open file f without blocking, and reports whether it did. If alone is true the lock
// is exclusive; otherwise several open files may share it. If another lock conflicts, Try returns
// false and no error. If f has a lock already, Try changes its kind; the old lock may be lost if it
// cannot. The error is that of flock(2), or means that f is closed. The lock ends with Unlock, or
// when f and all copies of its descriptor are closed.
func Try(f *os.File, alone bool) (bool, error) {
	how := syscall.LOCK_SH
	if alone {
		how = syscall.LOCK_EX
	}
	err := flock(f, how|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// Unlock releases the lock of Try. Without a lock it does nothing and returns nil. The error is
// that of flock(2), or means that f is closed.
func Unlock(f *os.File) error { return flock(f, syscall.LOCK_UN) }

// flock calls flock(2) for f with the operation how, and keeps f open during the call. The error is
// an *os.SyscallError, or means that f is closed.
func flock(f *os.File, how int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var locked error
	if err := raw.Control(func(fd uintptr) { locked = syscall.Flock(int(fd), how) }); err != nil {
		return err
	}
	return os.NewSyscallError("flock", locked)
}
