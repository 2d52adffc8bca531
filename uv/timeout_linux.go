package uv

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// control sets what package net has no option for. Connections that are
// accepted inherit it from their listener.
func (t *Transport) control(_, _ string, c syscall.RawConn) error {
	if t.userTimeout <= 0 {
		return nil
	}
	ms := max(t.userTimeout/time.Millisecond, 1)
	var err error
	if cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ms))
	}); cerr != nil {
		return cerr
	}
	return os.NewSyscallError("setsockopt TCP_USER_TIMEOUT", err)
}
