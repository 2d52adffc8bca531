package uv

import (
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// disablePacing sets the congestion control of c to reno if both ends of c are on this machine,
// where nothing is congested. Other algorithms may pace the sender: bbr takes a third more time and
// processor for the same bytes. Reno needs no privilege. If setting it fails, c stays unchanged.
func disablePacing(c *net.TCPConn) {
	if !withinMachine(c.LocalAddr(), c.RemoteAddr()) {
		return
	}
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		})
	}
}

// control sets TCP_USER_TIMEOUT on a socket that package net is about to connect or to listen on.
// The value is that of [WithUserTimeout], rounded down to milliseconds but at least one. Without
// that option control does nothing. Accepted connections inherit the timeout from their listener.
// The error is that of the system call or of c.
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
