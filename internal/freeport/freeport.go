// Package freeport finds addresses for tests in which one process is told where another
// one will listen. Until that does, the port can be given to anybody who asks the system
// for any.
package freeport

import (
	"net"
	"os"
	"runtime"
	"strconv"
	"testing"
)

// Addr is a host of this machine and a port at which nobody listens, for TCP. On Linux the
// host is this process's own, so that tests of other processes do not get the port.
func Addr(t testing.TB) string {
	t.Helper()
	host := own(os.Getpid()).String()
	return net.JoinHostPort(host, On(t, host))
}

// On is a port of that host at which nobody listens. Tests of other processes that ask for
// any port of the same host may get it.
func On(t testing.TB, host string) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// own is a loopback address. Linux has enough of them for the 22 bits of its process ids,
// apart from the one that everybody uses.
func own(pid int) net.IP {
	if runtime.GOOS != "linux" {
		return net.IPv4(127, 0, 0, 1)
	}
	return net.IPv4(127, 64|byte(pid>>16), byte(pid>>8), byte(pid))
}
