// Package freeport chooses TCP ports for tests in which one process is given the address at which
// another will listen. Until that process listens, the system may give the port to another one that
// listens at port 0.
package freeport

import (
	"net"
	"os"
	"runtime"
	"strconv"
	"testing"
)

// Addr returns an address host:port of this machine at which no process listens now. On Linux the
// host is a loopback address that only this process chooses, so that tests of other processes
// cannot take the port; on other systems it is 127.0.0.1. It fails the test, as Fatal does, if the
// system gives no port.
func Addr(t testing.TB) string {
	t.Helper()
	host := own(os.Getpid()).String()
	return net.JoinHostPort(host, Port(t, host))
}

// Port returns the number of a TCP port of host at which no process listens now. The system may
// give the same port to another process that listens at port 0 of that host. It fails the test, as
// Fatal does, if the system gives no port.
func Port(t testing.TB, host string) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// own returns the loopback address that tests of the process with the id pid use. On Linux each
// process id below 1<<22 has its own address, none of which is 127.0.0.1; on other systems the
// address is always 127.0.0.1.
func own(pid int) net.IP {
	if runtime.GOOS != "linux" {
		return net.IPv4(127, 0, 0, 1)
	}
	return net.IPv4(127, 64|byte(pid>>16), byte(pid>>8), byte(pid))
}
