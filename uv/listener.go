package uv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// past is a deadline that makes a blocked call return at once.
var past = time.Unix(1, 0)

// Listen opens a listener on addr, which has one of the forms of [ParseAddr]; with port 0 the
// system picks a free one. An empty host means all addresses of this machine. A host name is
// resolved, and the first of its addresses that can be bound is used. ctx bounds the call only, not
// the lifetime of the listener. The error is an *AddrError or a *ListenError. It matches
// [ErrTLSConfig] if the transport uses TLS without a server configuration, or with one that has no
// certificate.
func (t *Transport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	a, err := ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	switch r := t.tls; {
	case r == nil:
	case r.server == nil:
		err = fmt.Errorf("%w: WithTLS got no server configuration", ErrTLSConfig)
	case len(r.server.Certificates) == 0 && r.server.GetCertificate == nil && r.server.GetConfigForClient == nil:
		err = fmt.Errorf("%w: the server configuration has no certificate", ErrTLSConfig)
	}
	if err != nil {
		return nil, &ListenError{Addr: a.String(), Err: err}
	}
	tcp, err := t.listen(ctx, a)
	if err != nil {
		return nil, &ListenError{Addr: a.String(), Err: err}
	}
	if t.tls != nil {
		return newTLSListener(tcp, t.tls, t.wait), nil
	}
	return newListener(tcp, t.wait), nil
}

// listen opens a TCP listener on port a.Port of the first numeric address of a.Host that can be
// bound. The socket gets the transport's keepalive and user timeout. The error is that of ctx or of
// the resolver. If no address can be bound, it joins the errors of all addresses.
func (t *Transport) listen(ctx context.Context, a Addr) (*net.TCPListener, error) {
	hosts, err := t.resolve(ctx, a.Host)
	if err != nil {
		return nil, err
	}
	config := net.ListenConfig{
		KeepAlive:       -1, // otherwise Go would enable it if the configuration does not
		KeepAliveConfig: t.keepAlive,
		Control:         t.control,
	}
	// Peers are plain TCP, whose socket options multipath sockets do not all have.
	config.SetMultipathTCP(false)
	var failed []error
	for _, host := range hosts {
		network := "tcp"
		if ipv4(host) {
			network = "tcp4" // "tcp" would bind both families for 0.0.0.0
		}
		l, err := config.Listen(ctx, network, Addr{Host: host, Port: a.Port}.String())
		if err == nil {
			return l.(*net.TCPListener), nil
		}
		failed = append(failed, err)
	}
	return nil, errtext.Join(failed...)
}

// resolve returns the numeric addresses of host, which it looks up with the transport's resolver if
// host is a name. If host is numeric or empty, which means all addresses, it returns host alone.
// The error is that of ctx, also if ctx has ended before, or that of the resolver.
func (t *Transport) resolve(ctx context.Context, host string) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil || host == "" {
		return []string{host}, nil
	}
	ips, err := t.resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	hosts := make([]string, len(ips))
	for i, ip := range ips {
		hosts[i] = ip.Unmap().String()
	}
	return hosts, nil
}

type listener struct {
	tcp        *net.TCPListener
	waits      wait.Config   // of its connections
	acceptTurn chan struct{} // held by the call of Accept that waits in the kernel
	done       chan struct{} // closed by Close
	shut       func()
}

func newListener(tcp *net.TCPListener, waits wait.Config) *listener {
	l := &listener{tcp: tcp, waits: waits, acceptTurn: make(chan struct{}, 1), done: make(chan struct{})}
	l.shut = sync.OnceFunc(func() {
		close(l.done)
		tcp.Close()
	})
	return l
}

// Accept blocks until a connection arrives and returns it; the caller owns it. The error is that of
// ctx once ctx has ended, ErrClosed after Close, or that of accept(2). One call at a time waits in
// the kernel, and further calls wait for it to end, because they would share the socket's deadline,
// by which the end of ctx interrupts the wait.
func (l *listener) Accept(ctx context.Context) (transport.Conn, error) {
	select {
	case l.acceptTurn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.done:
		return nil, transport.ErrClosed
	}
	defer func() { <-l.acceptTurn }()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	tcp, err := l.accept(ctx)
	switch {
	case err == nil:
		return newConn(tcp, tcp, l.waits), nil
	case errors.Is(err, net.ErrClosed):
		return nil, transport.ErrClosed
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, err
}

// accept blocks until the kernel has a connection for the listener, and returns it. If ctx ends
// first, the error is a timeout. Otherwise the error is that of AcceptTCP. accept sets the socket's
// deadline when ctx ends, and clears it before it returns. The caller holds acceptTurn, so that no
// other call does so at the same time.
func (l *listener) accept(ctx context.Context) (*net.TCPConn, error) {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		l.tcp.SetDeadline(past)
	})
	tcp, err := l.tcp.AcceptTCP()
	failpoint.Here()
	if !stop() {
		<-interrupted
		l.tcp.SetDeadline(time.Time{})
	}
	return tcp, err
}

func (l *listener) Addr() string { return l.tcp.Addr().String() }

func (l *listener) Close() error {
	l.shut()
	return nil
}

var (
	_ transport.AddressTranslator = (*Transport)(nil)
	_ transport.Local             = (*Transport)(nil)
	_ transport.AckTimeouter      = (*Transport)(nil)
)

// IsLocal reports whether the host of addr is "localhost" or a loopback address, so that other
// machines cannot reach a listener on addr. It resolves no names, and returns false if addr is
// invalid.
func (t *Transport) IsLocal(addr string) bool {
	a, err := ParseAddr(addr)
	return err == nil && (a.Host == "localhost" || net.ParseIP(a.Host).IsLoopback())
}

// Advertise returns the address at which the peer of c can reach a listener of this end that is
// bound to addr. If addr is a wildcard address, such as "0.0.0.0:7000", that is the local host of c
// with addr's port. Otherwise it is addr unchanged. Advertise also returns a wildcard addr
// unchanged if c's local address has none of the forms of [ParseAddr] or is a wildcard, or if addr
// is the IPv4 wildcard and c's local address is not IPv4.
func (t *Transport) Advertise(addr string, c transport.Conn) string {
	if at, ok := t.AdvertiseAt(addr, c.LocalAddr()); ok {
		return at
	}
	return addr
}

// AdvertiseAt returns the address at which a process that reaches this machine at the address local
// can reach a listener of this end that is bound to addr. If addr is a wildcard address, such as
// "0.0.0.0:7000", that is the host of local with addr's port, and true. Otherwise, and if addr is
// invalid, it is addr itself and true. AdvertiseAt returns "" and false if addr is a wildcard and
// local is invalid or a wildcard, or if addr is the IPv4 wildcard and local is not IPv4.
func (t *Transport) AdvertiseAt(addr, local string) (string, bool) {
	bound, err := ParseAddr(addr)
	if err != nil || !bound.wildcard() {
		return addr, true
	}
	at, err := ParseAddr(local)
	if err != nil || at.wildcard() || ipv4(bound.Host) && !ipv4(at.Host) {
		return "", false
	}
	return Addr{Host: at.Host, Port: bound.Port}.String(), true
}

// Reach returns the address to dial for a listener of c's peer that the peer advertises as addr. It
// removes from addr a "#" and all that follows, because the peer must not choose the name that is
// checked. If addr is a wildcard address, as some C++ listeners advertise, c's remote host replaces
// its host. If c is a TLS connection of this package whose peer has proved another name than that
// host, Reach adds "#" and this name, so that [Transport.Dial] checks the name again. If the peer
// has dialled c and so has proved no name, Reach adds only "#", which Dial ignores. An addr that is
// invalid is returned without the "#" part. So is a wildcard addr if c's remote address is invalid.
func (t *Transport) Reach(addr string, c transport.Conn) string {
	addr, _, _ = strings.Cut(addr, nameSeparator) // the peer must not choose the name that is checked
	a, err := ParseAddr(addr)
	if err != nil {
		return addr
	}
	if a.wildcard() {
		peer, err := ParseAddr(c.RemoteAddr())
		if err != nil {
			return addr
		}
		a.Host = peer.Host
		addr = a.String()
	}
	if secure, ok := c.(*tlsConn); ok && secure.name != serverName(a.Host) {
		addr += nameSeparator + secure.name
	}
	return addr
}
