package uv_test

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// lookupAddress checks that the address that each lookup function returns has port 0, can be
// listened on, and can then be dialled.
func lookupAddress(t *testing.T) {
	for name, lookup := range map[string]func() (string, error){
		"host name":       func() (string, error) { return uv.LookupHostname(t.Context()) },
		"interface":       func() (string, error) { return uv.LookupInterface(loopbackInterface(t).Name) },
		"like NCCL":       func() (string, error) { return uv.LookupLikeNCCL("ip") },
		"like NCCL, IPv4": func() (string, error) { return uv.LookupLikeNCCL("ip4") },
	} {
		t.Run(name, func(t *testing.T) {
			addr, err := lookup()
			require.NoError(t, err)
			require.True(t, strings.HasSuffix(addr, ":0"), addr)
			tr := uv.New()
			l := listen(t, tr, addr)
			connect(t, tr, l, l.Addr())
		})
	}
}

func loopbackInterface(t *testing.T) net.Interface {
	t.Helper()
	all, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 {
			return i
		}
	}
	t.Skip("no loopback interface")
	return net.Interface{}
}

// TestScopeByIndex checks that the Addr of a listener contains the name of the interface even if
// the scope of the address was given as an index, as in the result of ParseAddr. The listener can
// be dialled by either.
func TestScopeByIndex(t *testing.T) {
	i, ip, found := linkLocal(t)
	if !found {
		againWithLinkLocal(t)
		return
	}
	at := func(scope, port string) string { return net.JoinHostPort(ip.WithZone(scope).String(), port) }
	index := strconv.Itoa(i.Index)
	tr := uv.New()
	l := listen(t, tr, at(index, "0"))
	bound, err := uv.ParseAddr(l.Addr())
	require.NoError(t, err)
	port := strconv.Itoa(int(bound.Port))
	require.Equal(t, at(i.Name, port), l.Addr())
	given, err := uv.ParseAddr(at(index, port))
	require.NoError(t, err)
	require.Equal(t, bound, given)
	connect(t, tr, l, at(index, port))
	connect(t, tr, l, at(i.Name, port))
}

// linkLocal returns a link-local IPv6 address of this machine, which needs a scope, the interface
// that has it, and true. It returns false if no interface that is up has such an address.
func linkLocal(t *testing.T) (net.Interface, netip.Addr, bool) {
	t.Helper()
	all, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range all {
		addrs, err := i.Addrs()
		require.NoError(t, err)
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() && i.Flags&net.FlagUp != 0 {
				return i, p.Addr(), true
			}
		}
	}
	return net.Interface{}, netip.Addr{}, false
}

func TestAddrIsMaterialised(t *testing.T) {
	for _, text := range []string{"127.0.0.1", "127.0.0.1:0", "localhost", ":0"} {
		a, err := uv.ParseAddr(listen(t, uv.New(), text).Addr())
		require.NoError(t, err)
		require.NotZero(t, a.Port)
	}
}

func TestWildcardKeepsItsFamily(t *testing.T) {
	l := listen(t, uv.New(), "0.0.0.0")
	a, err := uv.ParseAddr(l.Addr())
	require.NoError(t, err)
	require.Equal(t, "0.0.0.0", a.Host)
}

func TestAdvertise(t *testing.T) {
	for _, tc := range []struct {
		name, listen, via string
		want              string // the advertised host, "" for Addr
		ipv6              bool
	}{
		{"IPv4 wildcard", "0.0.0.0", "127.0.0.1", "127.0.0.1", false},
		{"IPv4 wildcard by another way", "0.0.0.0", "127.0.0.2", "127.0.0.2", false},
		{"every address by IPv4", ":0", "127.0.0.1", "127.0.0.1", false},
		{"IPv6 wildcard by IPv4", "[::]", "127.0.0.1", "127.0.0.1", true},
		{"IPv6 wildcard", "[::]", "::1", "::1", true},
		{"bound", "127.0.0.1", "127.0.0.1", "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.ipv6 {
				needIPv6(t)
			}
			if tc.via == "127.0.0.2" && runtime.GOOS != "linux" {
				t.Skip("only Linux has the whole of 127/8 on the loopback interface")
			}
			tr := uv.New()
			l := listen(t, tr, tc.listen)
			bound, err := uv.ParseAddr(l.Addr())
			require.NoError(t, err)
			_, accepted := connect(t, tr, l, uv.Addr{Host: tc.via, Port: bound.Port}.String())

			got := tr.Advertise(l.Addr(), accepted)
			if tc.want == "" {
				require.Equal(t, l.Addr(), got)
				return
			}
			require.Equal(t, uv.Addr{Host: tc.want, Port: bound.Port}.String(), got)
			connect(t, tr, l, got)
		})
	}
}

// TestAdvertiseToPeersOfOtherTransports checks that Advertise returns an IPv4 wildcard address
// unchanged if the local address of the connection is IPv6 or of another transport.
func TestAdvertiseToPeersOfOtherTransports(t *testing.T) {
	tr := uv.New()
	l := listen(t, tr, "0.0.0.0")
	for _, local := range []string{"[::1]:5", "name/17", "", "/tmp/socket"} {
		require.Equal(t, l.Addr(), tr.Advertise(l.Addr(), remoteConn{addr: local}))
	}
}

// remoteConn is a connection of which only the address matters.
type remoteConn struct {
	transport.Conn
	addr string
}

func (e remoteConn) LocalAddr() string { return e.addr }

func TestListenErrors(t *testing.T) {
	tr := uv.New()
	taken := listen(t, tr, "127.0.0.1")
	_, err := tr.Listen(t.Context(), taken.Addr())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	var typed *uv.ListenError
	require.ErrorAs(t, err, &typed)
	require.Equal(t, taken.Addr(), typed.Addr)

	_, err = tr.Listen(t.Context(), "203.0.113.1:0")
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
}

func TestDialErrors(t *testing.T) {
	tr := uv.New()
	l := listen(t, tr, "127.0.0.1")
	require.NoError(t, l.Close())
	_, err := tr.Dial(t.Context(), l.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	var typed *uv.DialError
	require.ErrorAs(t, err, &typed)
	require.Equal(t, l.Addr(), typed.Addr)
}

func TestAcceptSurvivesCancelledOnes(t *testing.T) {
	tr := uv.New()
	l := listen(t, tr, "127.0.0.1")
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := l.Accept(ctx)
			failed <- err
		}()
		cancel()
		require.ErrorIs(t, <-failed, context.Canceled)
	}
	connect(t, tr, l, l.Addr())
}
