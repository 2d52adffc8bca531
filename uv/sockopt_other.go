//go:build !linux

package uv

import (
	"net"
	"syscall"
)

// disablePacing does nothing: other systems do not pace connections.
func disablePacing(*net.TCPConn) {}

// control does nothing: this system has no TCP_USER_TIMEOUT.
func (t *Transport) control(_, _ string, _ syscall.RawConn) error { return nil }
