package uv

import (
	"net"

	"golang.org/x/sys/unix"
)

// unpace takes c, if it stays within this machine, away from algorithms that
// measure a network and pace what they send: there is none to be congested, and
// bbr takes a third more time and processor for the same bytes. Every process may
// choose reno; a kernel without it leaves c as it is.
func unpace(c *net.TCPConn) {
	if !withinMachine(c.LocalAddr(), c.RemoteAddr()) {
		return
	}
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		})
	}
}
