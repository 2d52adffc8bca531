package uv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// LookupHostname resolves this machine's host name and returns the first of its addresses that can
// be bound, with port 0, for use with [Transport.Listen]. ctx bounds the resolution. If the hosts
// file maps the name to 127.0.x.x, as some distributions do, other machines cannot reach that
// address, and [LookupLikeNCCL] is better. The error is a [*LookupError].
func LookupHostname(ctx context.Context) (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", &LookupError{Query: "this machine's host name", Err: err}
	}
	query := "host name " + name
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return "", &LookupError{Query: query, Err: err}
	}
	return firstBindable(query, ips)
}

// LookupInterface returns the first address of the network interface name that can be bound, with
// port 0, for use with [Transport.Listen]. It tries link-local IPv6 addresses last. The error is a
// [*LookupError].
func LookupInterface(name string) (string, error) {
	query := "interface " + name
	i, err := net.InterfaceByName(name)
	if err != nil {
		return "", &LookupError{Query: query, Err: err}
	}
	iface, err := newIface(*i)
	if err != nil {
		return "", &LookupError{Query: query, Err: err}
	}
	return firstBindable(query, iface.ips)
}

// LookupLikeNCCL returns the first address of this machine that can be bound, in the order in which
// NVIDIA's NCCL prefers interfaces, with port 0, for use with [Transport.Listen]. Only interfaces
// that are up count: first those named ib*, then all without a special name, then docker*, then
// lo*. The IPv6 loopback address is never used. family is "ip" for any address, "ip4" or "ip6". The
// error is a [*LookupError].
func LookupLikeNCCL(family string) (string, error) {
	query := fmt.Sprintf("any interface (family %s)", family)
	if !slices.Contains([]string{"ip", "ip4", "ip6"}, family) {
		return "", &LookupError{Query: query, Err: errors.New("the family is none of ip, ip4, ip6")}
	}
	all, err := net.Interfaces()
	if err != nil {
		return "", &LookupError{Query: query, Err: err}
	}
	var ifaces []iface
	for _, i := range all {
		c, err := newIface(i)
		if err != nil {
			return "", &LookupError{Query: query, Err: err}
		}
		ifaces = append(ifaces, c)
	}
	return firstBindable(query, orderLikeNCCL(ifaces, family))
}

// firstBindable returns the first of ips to which a socket can be bound, as an address with port 0.
// If it finds none, the error is a *LookupError with query. Its Err is the reason why the first of
// ips cannot be bound, or a general error if ips is empty.
func firstBindable(query string, ips []netip.Addr) (string, error) {
	failed := &LookupError{Query: query, Err: errors.New("there is none")}
	for i, ip := range ips {
		host := ip.Unmap().String()
		addr, err := bindable(host)
		if err == nil {
			return addr, nil
		}
		failed.Tried = append(failed.Tried, host)
		if i == 0 {
			failed.Err = err
		}
	}
	return "", failed
}

// bindable checks that a TCP listener can be opened on host, a numeric address, by opening one on a
// free port and closing it. It returns host as an address with port 0. The error is that of
// net.Listen or of closing the listener.
func bindable(host string) (string, error) {
	addr := Addr{Host: host}.String()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	return addr, l.Close()
}

// iface is a network interface of this machine.
type iface struct {
	name string
	up   bool
	ips  []netip.Addr // link-local ones last
}

func newIface(i net.Interface) (iface, error) {
	c := iface{name: i.Name, up: i.Flags&net.FlagUp != 0}
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

// orderLikeNCCL returns the addresses of those of ifaces that are up, in the order in which NCCL
// prefers them: interfaces named ib*, then those without a special name, docker*, and lo*. It
// leaves out the IPv6 loopback address and, if family is "ip4" or "ip6" and not "ip", the addresses
// of the other family.
func orderLikeNCCL(ifaces []iface, family string) []netip.Addr {
	class := func(name string) int {
		switch {
		case strings.HasPrefix(name, "ib"): // InfiniBand
			return 0
		case strings.HasPrefix(name, "docker"):
			return 2
		case strings.HasPrefix(name, "lo"):
			return 3
		}
		return 1
	}
	inFamily := func(ip netip.Addr) bool {
		return family == "ip" || family == "ip4" && ip.Is4() || family == "ip6" && ip.Is6()
	}
	var out []netip.Addr
	for wanted := range 4 {
		for _, c := range ifaces {
			if !c.up || class(c.name) != wanted {
				continue
			}
			for _, ip := range c.ips {
				if inFamily(ip) && ip != netip.IPv6Loopback() {
					out = append(out, ip)
				}
			}
		}
	}
	return out
}
