package uv

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// past is a deadline that ends a blocked call at once.
var past = time.Unix(1, 0)

// Listen opens a listener on addr, see [ParseAddr]; port 0 picks a free one. A
// host name is resolved and the first of its addresses that belongs to this
// machine taken.
func (t *Transport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	a, err := ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	if err := t.tls.canListen(); err != nil {
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

// listen tries all numeric addresses of a.
func (t *Transport) listen(ctx context.Context, a Addr) (*net.TCPListener, error) {
	hosts, err := t.resolve(ctx, a.Host)
	if err != nil {
		return nil, err
	}
	config := net.ListenConfig{
		KeepAlive:       -1, // or Go would enable it where the config does not
		KeepAliveConfig: t.keepAlive,
		Control:         t.control,
	}
	// Peers are plain TCP, whose socket options multipath sockets do not all have.
	config.SetMultipathTCP(false)
	var failed []error
	for _, host := range hosts {
		l, err := config.Listen(ctx, network(host), Addr{Host: host, Port: a.Port}.String())
		if err == nil {
			return l.(*net.TCPListener), nil
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

// resolve returns the numeric addresses of host; the empty host is its own.
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

// network keeps 0.0.0.0 to IPv4: package net would bind both families.
func network(host string) string {
	if ipv4(host) {
		return "tcp4"
	}
	return "tcp"
}

type listener struct {
	tcp  *net.TCPListener
	spin time.Duration // of its connections
	turn chan struct{} // held by the call in Accept that is next
	done chan struct{} // closed by Close
	shut func()
}

func newListener(tcp *net.TCPListener, spin time.Duration) *listener {
	l := &listener{tcp: tcp, spin: spin, turn: make(chan struct{}, 1), done: make(chan struct{})}
	l.shut = sync.OnceFunc(func() {
		close(l.done)
		tcp.Close()
	})
	return l
}

// Accept lets one call at a time wait in the kernel, because the deadline by
// which ctx interrupts it is the listener's.
func (l *listener) Accept(ctx context.Context) (transport.Conn, error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.done:
		return nil, transport.ErrClosed
	}
	defer func() { <-l.turn }()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	tcp, err := l.accept(ctx)
	switch {
	case err == nil:
		return newConn(tcp, l.spin), nil
	case errors.Is(err, net.ErrClosed):
		return nil, transport.ErrClosed
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, err
}

// accept takes the next connection from the kernel, or fails when ctx ends.
func (l *listener) accept(ctx context.Context) (*net.TCPConn, error) {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		l.tcp.SetDeadline(past)
	})
	tcp, err := l.tcp.AcceptTCP()
	step.Here()
	if !stop() {
		<-interrupted
		l.tcp.SetDeadline(time.Time{})
	}
	return tcp, err
}

func (l *listener) Addr() string { return l.tcp.Addr().String() }

// AdvertiseTo implements [transport.Advertiser].
func (l *listener) AdvertiseTo(c transport.Conn) string {
	bound, err := ParseAddr(l.Addr())
	if err != nil || !bound.wildcard() {
		return l.Addr()
	}
	via, err := ParseAddr(c.LocalAddr())
	if err != nil || ipv4(bound.Host) && !ipv4(via.Host) {
		return l.Addr()
	}
	return Addr{Host: via.Host, Port: bound.Port}.String()
}

func (l *listener) Close() error {
	l.shut()
	return nil
}
