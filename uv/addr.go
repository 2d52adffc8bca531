package uv

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Addr is a TCP address.
type Addr struct {
	// Host is a numeric address, with its %scope if it has one and without brackets, or a host
	// name. Empty means every address of this machine: it is valid for listening and not for
	// dialling.
	Host string
	// Port is 0 if none was given: a listener then picks one.
	Port uint16
}

// ParseAddr parses an address of one of these forms. Without a port, Port is 0:
//
//	192.0.2.1           192.0.2.1:7000
//	2001:db8::1         [2001:db8::1]      [2001:db8::1]:7000
//	fe80::1%eth0        [fe80::1%eth0]     [fe80::1%eth0]:7000
//	node17.example      node17.example:7000
//	                    :7000
//
// A scope that is the index of an interface of this machine becomes that interface's name, as in
// the addresses that listeners and connections report. Host names are not resolved. The error is an
// [*AddrError].
func ParseAddr(s string) (Addr, error) {
	host, port, err := split(s)
	if err != nil {
		return Addr{}, err
	}
	a := Addr{Host: host}
	if port == nil {
		return a, nil
	}
	n, perr := strconv.ParseUint(*port, 10, 16)
	if perr != nil {
		return Addr{}, &AddrError{Addr: s, Reason: "the port is not one of 0..65535"}
	}
	a.Port = uint16(n)
	return a, nil
}

// split splits s into a host and the text of a port. port is nil if s has no port, and host is
// empty if s is only a colon and a port. split checks that the host is a numeric address or a
// possible name, but does not check the port. It returns an IPv6 address in canonical form and
// without brackets. The error is an *AddrError.
func split(s string) (host string, port *string, err error) {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		return splitBrackets(s, inner)
	}
	if strings.Count(s, ":") > 1 {
		host, ok := ipv6(s)
		if !ok {
			return "", nil, &AddrError{Addr: s, Reason: "not an IPv6 address (with a port it needs brackets)"}
		}
		return host, nil, nil
	}
	host, rest, found := strings.Cut(s, ":")
	if found {
		port = &rest
	}
	if host == "" && !found || host != "" && !ipv4(host) && !hostName(host) {
		return "", nil, &AddrError{Addr: s, Reason: "the host is neither a numeric address nor a name"}
	}
	return host, port, nil
}

// splitBrackets splits s, which begins with "[", into an IPv6 address and the text of a port. inner
// is s without the "[", such as "::1]" or "::1]:7000". The host is in canonical form and without
// brackets; port is nil if nothing follows the "]". The error is an *AddrError.
func splitBrackets(s, inner string) (host string, port *string, err error) {
	text, rest, _ := strings.Cut(inner, "]")
	host, ok := ipv6(text)
	if !ok {
		return "", nil, &AddrError{Addr: s, Reason: "no IPv6 address in the brackets"}
	}
	if rest == "" && strings.HasSuffix(s, "]") {
		return host, nil, nil
	}
	digits, ok := strings.CutPrefix(rest, ":")
	if !ok {
		return "", nil, &AddrError{Addr: s, Reason: "want [address] or [address]:port"}
	}
	return host, &digits, nil
}

// ipv6 returns the canonical form of s and true if s is an IPv6 address, and "" and false
// otherwise. In the canonical form a scope that is the index of an interface is replaced by the
// interface's name. An address whose scope contains a bracket is rejected, because it could not be
// written in brackets.
func ipv6(s string) (string, bool) {
	ip, err := netip.ParseAddr(s)
	if err != nil || !ip.Is6() || strings.ContainsAny(ip.Zone(), "[]") {
		return "", false
	}
	return ip.WithZone(scopeName(ip.Zone())).String(), true
}

// scopeName returns the name of the network interface whose index, in decimal digits, is scope. It
// returns scope unchanged if it is the name of an interface or not a number, if no interface has
// that index, or if the interface's name contains a bracket.
func scopeName(scope string) string {
	index, err := strconv.ParseUint(scope, 10, 31)
	if err != nil {
		return scope
	}
	if _, err := net.InterfaceByName(scope); err == nil { // names may consist of digits
		return scope
	}
	found, err := net.InterfaceByIndex(int(index))
	if err != nil || strings.ContainsAny(found.Name, "[]") {
		return scope
	}
	return found.Name
}

func ipv4(s string) bool {
	ip, err := netip.ParseAddr(s)
	return err == nil && ip.Is4()
}

// hostName reports whether s could be a name in DNS or in a hosts file: it consists of letters,
// digits, '-', '.' and '_', and is not empty. A name whose last label is a number is rejected,
// because it is a misspelt IPv4 address.
func hostName(s string) bool {
	for _, c := range s {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._", c) {
			return false
		}
	}
	label := strings.TrimSuffix(s, ".")
	label = label[strings.LastIndexByte(label, '.')+1:]
	_, err := strconv.ParseUint(label, 0, 64)
	return label != "" && err != nil
}

// String returns the host and the port as "host:port", with brackets around an IPv6 host.
func (a Addr) String() string {
	return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port)))
}

// wildcard reports whether a means every address of the machine: its host is empty, 0.0.0.0 or ::.
func (a Addr) wildcard() bool {
	ip, err := netip.ParseAddr(a.Host)
	return a.Host == "" || err == nil && ip.IsUnspecified()
}
