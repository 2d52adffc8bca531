package bench

import "syscall"

// useReno sets the congestion control of a TCP socket to "reno", which the transport uv uses within
// a machine. If the kernel does not have it, the socket keeps its own, and useReno returns nil. It
// has the type of the field Control of net.Dialer and net.ListenConfig.
func useReno(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptString(int(fd), syscall.IPPROTO_TCP, syscall.TCP_CONGESTION, "reno")
	})
}
