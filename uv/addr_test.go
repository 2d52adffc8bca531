package uv_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/uv"
)

var goodAddrs = []struct {
	text    string
	host    string
	port    uint16
	printed string
}{
	{"1.2.3.4:5", "1.2.3.4", 5, "1.2.3.4:5"},
	{"1.2.3.4:0", "1.2.3.4", 0, "1.2.3.4:0"},
	{"1.2.3.4", "1.2.3.4", 0, "1.2.3.4:0"},
	{"127.0.0.1", "127.0.0.1", 0, "127.0.0.1:0"},
	{"127.0.0.1:0", "127.0.0.1", 0, "127.0.0.1:0"},
	{"127.0.0.1:5", "127.0.0.1", 5, "127.0.0.1:5"},
	{"192.0.2.255:65535", "192.0.2.255", 65535, "192.0.2.255:65535"},
	{"::", "::", 0, "[::]:0"},
	{"::1", "::1", 0, "[::1]:0"},
	{"[::1]", "::1", 0, "[::1]:0"},
	{"[::1]:5", "::1", 5, "[::1]:5"},
	{"[::1]:0", "::1", 0, "[::1]:0"},
	{"[::]:65535", "::", 65535, "[::]:65535"},
	{"2001:DB8:0:0::1", "2001:db8::1", 0, "[2001:db8::1]:0"},
	{"fe80::1%eth0", "fe80::1%eth0", 0, "[fe80::1%eth0]:0"},
	{"[fe80::1%2147483647]:7000", "fe80::1%2147483647", 7000, "[fe80::1%2147483647]:7000"}, // no interface
	{"[fe80::1%4294967296]:7000", "fe80::1%4294967296", 7000, "[fe80::1%4294967296]:7000"},
	{"[::ffff:192.0.2.1]:1", "::ffff:192.0.2.1", 1, "[::ffff:192.0.2.1]:1"},
	{"localhost", "localhost", 0, "localhost:0"},
	{"localhost:80", "localhost", 80, "localhost:80"},
	{"gpu_17.rack-3.example.:80", "gpu_17.rack-3.example.", 80, "gpu_17.rack-3.example.:80"},
	{"10gig", "10gig", 0, "10gig:0"},
	{":7000", "", 7000, ":7000"},
}

var badPorts = []string{
	"1.2.3.4:65536", "1.2.3.4:-1", "1.2.3.4:", "1.2.3.4:http", "1.2.3.4:+5", "1.2.3.4: 5",
	"1.2.3.4:99999999999999999999", "[::1]:65536", "[::1]:-1", "[::1]:", "[::1]:x", "host:65536", ":", ":x",
}

var badAddrs = []string{
	"", "1.2.3", "1.2.3.4.5", "256.1.1.1:80", "1.2.3.4%eth0", "127.1", "0x7f000001", "2130706433",
	"[", "[]", "]::1[", "][", "[]:5", "[::1", "[::1:5", "[::1]5", "[::1]5:5", "[::1]]:5", "[1.2.3.4]:5", "[localhost]:5",
	"[::g]", "::g", "1:2:3", "::1:65536x", "fe80::1%", "::1%3]:7000", "a b", "a/b:5", "uv://1.2.3.4:5", "a\x00b", "käse:5", ".", "..",
}

func parsesAndPrints(t *testing.T) {
	for _, tc := range goodAddrs {
		wantAddr(t, tc.text, uv.Addr{Host: tc.host, Port: tc.port}, tc.printed)
	}
}

// wantAddr checks that ParseAddr returns want for text and for printed, and that String of the
// result is printed.
func wantAddr(t *testing.T, text string, want uv.Addr, printed string) {
	t.Helper()
	for _, s := range []string{text, printed} {
		a, err := uv.ParseAddr(s)
		require.NoError(t, err)
		require.Equal(t, want, a, s)
		require.Equal(t, printed, a.String())
	}
}

// scopesHaveNames checks that ParseAddr accepts the scope of an IPv6 address as the name of an
// interface and as its index, and returns the name in both cases.
func scopesHaveNames(t *testing.T) {
	lo := loopbackInterface(t)
	for _, scope := range []string{lo.Name, strconv.Itoa(lo.Index), "0" + strconv.Itoa(lo.Index)} {
		host := "::1%" + lo.Name
		wantAddr(t, "::1%"+scope, uv.Addr{Host: host}, "["+host+"]:0")
		wantAddr(t, "[::1%"+scope+"]:42", uv.Addr{Host: host, Port: 42}, "["+host+"]:42")
	}
}

func refusesMisplacedBrackets(t *testing.T) {
	for _, text := range []string{"]::1[", "]::1[:5", "]::1]:5", "[::1[:5"} {
		_, err := uv.ParseAddr(text)
		var typed *uv.AddrError
		require.ErrorAs(t, err, &typed, text)
		require.Equal(t, text, typed.Addr)
	}
}

func refusesBadPorts(t *testing.T) {
	for _, text := range badPorts {
		_, err := uv.ParseAddr(text)
		var typed *uv.AddrError
		require.ErrorAs(t, err, &typed, text)
		require.Equal(t, text, typed.Addr)
		require.Contains(t, typed.Reason, "port")
	}
}

func TestBadAddrs(t *testing.T) {
	tr := uv.New()
	for _, text := range append(badAddrs, badPorts...) {
		_, err := uv.ParseAddr(text)
		_, derr := tr.Dial(t.Context(), text)
		_, lerr := tr.Listen(t.Context(), text)
		for _, err := range []error{err, derr, lerr} {
			var typed *uv.AddrError
			require.ErrorAs(t, err, &typed, "%q", text)
		}
	}
	_, err := tr.Dial(t.Context(), ":7000")
	require.ErrorContains(t, err, "no host")
}

// FuzzParseAddr checks that the printed form of each address that ParseAddr accepts parses to the
// same address, and that ParseAddr's error for any other text is an *AddrError with that text.
func FuzzParseAddr(f *testing.F) {
	for _, tc := range goodAddrs {
		f.Add(tc.text)
	}
	for _, text := range append(badAddrs, badPorts...) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := uv.ParseAddr(text)
		if err != nil {
			typed, ok := errors.AsType[*uv.AddrError](err)
			require.True(t, ok)
			require.Equal(t, text, typed.Addr)
			return
		}
		again, err := uv.ParseAddr(a.String())
		require.NoError(t, err)
		require.Equal(t, a, again)
	})
}
