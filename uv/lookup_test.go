package uv

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func ips(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestLikeNCCL(t *testing.T) {
	lo := iface{"lo", true, ips("127.0.0.1", "::1")}
	docker := iface{"docker0", true, ips("172.17.0.1", "fd00::17")}
	eth := iface{"eth0", true, ips("10.0.0.1", "2001:db8::1")}
	bond := iface{"bond0", true, ips("10.0.0.2")}
	infini := iface{"ib0", true, ips("10.1.0.1", "fd00::1")}
	down := iface{"ib1", false, ips("10.1.0.2")}
	all := []iface{lo, docker, down, eth, bond, infini}
	for _, tc := range []struct {
		name   string
		ifaces []iface
		family string
		want   []netip.Addr
	}{
		{"all, best first", all, "ip", ips("10.1.0.1", "fd00::1", "10.0.0.1", "2001:db8::1", "10.0.0.2", "172.17.0.1", "fd00::17", "127.0.0.1")},
		{"IPv4", all, "ip4", ips("10.1.0.1", "10.0.0.1", "10.0.0.2", "172.17.0.1", "127.0.0.1")},
		{"IPv6 without loopback", all, "ip6", ips("fd00::1", "2001:db8::1", "fd00::17")},
		{"docker before lo", []iface{lo, docker}, "ip4", ips("172.17.0.1", "127.0.0.1")},
		{"nothing but IPv6 loopback", []iface{lo}, "ip6", nil},
		{"nothing up", []iface{down}, "ip", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, orderLikeNCCL(tc.ifaces, tc.family))
		})
	}
}

func TestFirstBindable(t *testing.T) {
	addr, err := firstBindable("test", ips("203.0.113.1", "127.0.0.1", "127.0.0.2"))
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:0", addr)

	_, err = firstBindable("test", ips("203.0.113.1", "203.0.113.2"))
	var typed *LookupError
	require.ErrorAs(t, err, &typed)
	require.Equal(t, []string{"203.0.113.1", "203.0.113.2"}, typed.Tried)
	require.ErrorContains(t, err, "tried 203.0.113.1, 203.0.113.2")

	_, err = firstBindable("test", nil)
	require.ErrorContains(t, err, "no address for test: there is none")
}

func TestLookupErrors(t *testing.T) {
	_, err := LookupInterface("no-such-card")
	require.ErrorContains(t, err, "interface no-such-card")
	_, err = LookupLikeNCCL("ip5")
	require.ErrorContains(t, err, `ip5`)
	var typed *LookupError
	require.ErrorAs(t, err, &typed)
}

func TestLinkLocalComesLastAndWithItsZone(t *testing.T) {
	all, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range all {
		c, err := newIface(i)
		require.NoError(t, err)
		linkLocal := false
		for _, ip := range c.ips {
			if ip.Is6() && ip.IsLinkLocalUnicast() {
				linkLocal = true
				require.Equal(t, i.Name, ip.Zone())
			} else {
				require.False(t, linkLocal, "%s behind a link-local address on %s", ip, i.Name)
			}
		}
	}
}
