//go:build linux || darwin

package flock

import (
	"errors"
	"os"
	"syscall"
)

// Try locks f, for this open file alone or together with others that share it
// too. It returns false where somebody else has a lock that is in the way.
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

// Unlock ends a lock.
func Unlock(f *os.File) error { return flock(f, syscall.LOCK_UN) }

// flock keeps f open during the call.
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
