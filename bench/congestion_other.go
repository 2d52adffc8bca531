//go:build !linux

package bench

import "syscall"

// useReno does nothing and returns nil, because the transport uv does not change the congestion
// control on this system. It has the type of the field Control of net.Dialer and net.ListenConfig.
func useReno(_, _ string, _ syscall.RawConn) error { return nil }
