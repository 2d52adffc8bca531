package uv_test

import (
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

func TestCongestionControlWithinMachine(t *testing.T) {
	names, err := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	if err != nil || !slices.Contains(strings.Fields(string(names)), "reno") {
		t.Skipf("no reno for this process: %q, %v", names, err)
	}
	tr := uv.New()
	l := listen(t, tr, "127.0.0.1")
	dialled, accepted := connect(t, tr, l, l.Addr())
	for _, c := range []transport.Conn{dialled, accepted} {
		require.Equal(t, "reno", congestionControl(t, c))
	}
}

func congestionControl(t *testing.T, c transport.Conn) string {
	t.Helper()
	rc, err := uv.TCPConn(c).SyscallConn()
	require.NoError(t, err)
	var name string
	var gerr error
	require.NoError(t, rc.Control(func(fd uintptr) {
		name, gerr = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	}))
	require.NoError(t, gerr)
	return name
}

func TestWithinMachine(t *testing.T) {
	for _, tc := range []struct {
		local, remote string
		want          bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "127.8.0.2", true},
		{"::1", "::1", true},
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"2001:db8::1", "2001:db8::2", false},
		{"fe80::1", "fe80::1", true},
	} {
		local, remote := &net.TCPAddr{IP: net.ParseIP(tc.local)}, &net.TCPAddr{IP: net.ParseIP(tc.remote)}
		require.Equal(t, tc.want, uv.WithinMachine(local, remote), "%s, %s", local, remote)
	}
}
