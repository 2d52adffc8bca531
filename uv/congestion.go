package uv

import "net"

// withinMachine reports whether the ends of a connection have addresses of one
// machine: the same one, or two of the loopback interface. An address that is nil,
// of a socket that has ended already, is nobody's.
func withinMachine(local, remote net.Addr) bool {
	a, ok := local.(*net.TCPAddr)
	b, same := remote.(*net.TCPAddr)
	return ok && same && (a.IP.Equal(b.IP) || a.IP.IsLoopback() && b.IP.IsLoopback())
}
