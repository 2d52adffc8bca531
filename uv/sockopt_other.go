//go:build !linux

package uv

import (
	"net"
	"syscall"
)

// disablePacing does nothing on this system.
func disablePacing(*net.TCPConn) {}

// control does nothing and returns nil: this system has no TCP_USER_TIMEOUT.
func (t *Transport) control(_, _ string, _ syscall.RawConn) error { return nil }
