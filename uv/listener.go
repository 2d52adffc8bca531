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

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// past is a deadline that makes a blocked call return at once.
var past = time.Unix(1, 0)

// Listen opens a listener on addr, see [ParseAddr]; port 0 picks a free one. A host name is
// resolved, and its first address that belongs to this machine is used. ctx bounds the call only.
// The error is an *AddrError or a *ListenError.
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
		return newTLSListener(tcp, t.tls, t.spin), nil
	}
	return newListener(tcp, t.spin), nil
}

// listen opens a TCP listener on the first numeric address of a.Host that can be bound. The error
// is that of resolve or, if no address can be bound, the errors of all of them joined.
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
	return nil, errors.Join(failed...)
}

// resolve returns the numeric addresses of host, by the transport's resolver if host is a name. A
// numeric host is returned as it is, and so is the empty one, which means all addresses. The error
// is that of ctx or of the resolver.
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
	spin       time.Duration // of its connections
	acceptTurn chan struct{} // held by the call of Accept that waits in the kernel
	done       chan struct{} // closed by Close
	shut       func()
}

func newListener(tcp *net.TCPListener, spin time.Duration) *listener {
	l := &listener{tcp: tcp, spin: spin, acceptTurn: make(chan struct{}, 1), done: make(chan struct{})}
	l.shut = sync.OnceFunc(func() {
		close(l.done)
		tcp.Close()
	})
	return l
}

// Accept implements transport.Listener. Only one call at a time waits in the kernel, and the others
// wait for their turn, because the deadline by which ctx interrupts it belongs to the listener.
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
		return newConn(tcp, tcp, l.spin), nil
	case errors.Is(err, net.ErrClosed):
		return nil, transport.ErrClosed
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, err
}

// accept blocks until the kernel has a connection for the listener. When ctx ends it returns a
// timeout. The caller holds acceptTurn.
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

// IsLocal implements [transport.Local]. It returns true if the host of addr is an address of the
// loopback interface or "localhost", and false if addr is invalid.
func (t *Transport) IsLocal(addr string) bool {
	a, err := ParseAddr(addr)
	return err == nil && (a.Host == "localhost" || net.ParseIP(a.Host).IsLoopback())
}

// Advertise implements [transport.AddressTranslator]. If addr is a wildcard address, it returns the
// host of this end of c with addr's port. Otherwise it returns addr. It also returns addr if a
// listener on addr cannot be reached at that host: if addr is the IPv4 wildcard and c an IPv6
// connection, or if the local address of c has none of the forms of [ParseAddr].
func (t *Transport) Advertise(addr string, c transport.Conn) string {
	bound, err := ParseAddr(addr)
	if err != nil || !bound.wildcard() {
		return addr
	}
	via, err := ParseAddr(c.LocalAddr())
	if err != nil || ipv4(bound.Host) && !ipv4(via.Host) {
		return addr
	}
	return Addr{Host: via.Host, Port: bound.Port}.String()
}

// Reach implements [transport.AddressTranslator]. It returns addr without a # and the name after
// it. If addr is a wildcard, which a C++ listener advertises if it is bound to one, the remote host
// of c replaces it. If the peer of c has proved another name than the host by TLS, Reach adds # and
// that name, see [Transport.Dial]: the certificate need not contain the numeric address.
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
