package bench

import "syscall"

// unpaced gives a socket the congestion control that the transport uv gives to
// connections within a machine. A kernel without it leaves the socket as it is.
func unpaced(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptString(int(fd), syscall.IPPROTO_TCP, syscall.TCP_CONGESTION, "reno")
	})
}
