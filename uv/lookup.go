package uv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
)

// LookupHostname returns the first address of this machine's host name that
// can be bound, with port 0, fit for [Transport.Listen]. Where the name stands
// for 127.0.x.x in the hosts file, as some distributions have it, that is of
// no use to other machines; prefer [LookupLikeNCCL]. The error is a
// [*LookupError].
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

// LookupInterface returns the first address of the network interface of that
// name, with port 0, fit for [Transport.Listen]. Link-local addresses come
// last. The error is a [*LookupError].
func LookupInterface(name string) (string, error) {
	query := "interface " + name
	i, err := net.InterfaceByName(name)
	if err != nil {
		return "", &LookupError{Query: query, Err: err}
	}
	card, err := newCard(*i)
	if err != nil {
		return "", &LookupError{Query: query, Err: err}
	}
	return firstBindable(query, card.ips)
}

// LookupLikeNCCL returns an address of this machine by the preference of
// NVIDIA's NCCL, with port 0, fit for [Transport.Listen]. Of the interfaces that are up
// come first those named ib*, then those without a special name, then docker*,
// then lo*. The loopback address of IPv6 is never taken. family is "ip" for
// any address, or "ip4" or "ip6". The error is a [*LookupError].
func LookupLikeNCCL(family string) (string, error) {
	query := fmt.Sprintf("any interface (family %s)", family)
	if !slices.Contains([]string{"ip", "ip4", "ip6"}, family) {
		return "", &LookupError{Query: query, Err: errors.New("the family is none of ip, ip4, ip6")}
	}
	all, err := net.Interfaces()
	if err != nil {
		return "", &LookupError{Query: query, Err: err}
	}
	var cards []card
	for _, i := range all {
		c, err := newCard(i)
		if err != nil {
			return "", &LookupError{Query: query, Err: err}
		}
		cards = append(cards, c)
	}
	return firstBindable(query, likeNCCL(cards, family))
}

// firstBindable returns the first of ips that a socket can be bound to.
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

// bindable returns host with port 0, or says why no socket can be bound to it.
func bindable(host string) (string, error) {
	addr := Addr{Host: host}.String()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	return addr, l.Close()
}
