//go:build !linux

package bench

import "syscall"

// useReno does nothing, since the transport uv does not change the congestion control on this system.
// It is a Control function of net.Dialer and net.ListenConfig.
func useReno(_, _ string, _ syscall.RawConn) error { return nil }
