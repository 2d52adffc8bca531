//go:build !linux

package uv

import "syscall"

// control does nothing: there is no TCP_USER_TIMEOUT here.
func (t *Transport) control(_, _ string, _ syscall.RawConn) error { return nil }
