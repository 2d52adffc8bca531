package uv

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// card is a network interface as data.
type card struct {
	name string
	up   bool
	ips  []netip.Addr // link-local ones last
}

func newCard(i net.Interface) (card, error) {
	c := card{name: i.Name, up: i.Flags&net.FlagUp != 0}
	addrs, err := i.Addrs()
	if err != nil {
		return c, err
	}
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		ip := prefix.Addr().Unmap()
		if ip.Is6() && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(i.Name)
		}
		c.ips = append(c.ips, ip)
	}
	slices.SortStableFunc(c.ips, func(a, b netip.Addr) int {
		return cmp.Compare(len(a.Zone()), len(b.Zone()))
	})
	return c, nil
}

// likeNCCL lists the addresses of cards, best first.
func likeNCCL(cards []card, family string) []netip.Addr {
	var out []netip.Addr
	for _, wanted := range []func(string) bool{isInfiniBand, isOrdinary, isDocker, isLoopback} {
		for _, c := range cards {
			if !c.up || !wanted(c.name) {
				continue
			}
			for _, ip := range c.ips {
				if inFamily(ip, family) && ip != netip.IPv6Loopback() {
					out = append(out, ip)
				}
			}
		}
	}
	return out
}

func isInfiniBand(name string) bool { return strings.HasPrefix(name, "ib") }
func isDocker(name string) bool     { return strings.HasPrefix(name, "docker") }
func isLoopback(name string) bool   { return strings.HasPrefix(name, "lo") }
func isOrdinary(name string) bool {
	return !isInfiniBand(name) && !isDocker(name) && !isLoopback(name)
}

func inFamily(ip netip.Addr, family string) bool {
	return family == "ip" || family == "ip4" && ip.Is4() || family == "ip6" && ip.Is6()
}
