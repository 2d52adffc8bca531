// Package uv is the transport over TCP. On the wire it is TensorPipe's transport of the same name:
// each frame is its length as eight little-endian bytes, followed by its body, and nothing else is
// sent.
//
// An application gives the transport to a pipe, or uses it on its own:
//
//	tr := uv.New()
//	l, err := tr.Listen(ctx, "0.0.0.0:7000")
//	c, err := tr.Dial(ctx, "node17:7000")
//	err = c.WriteFrames(transport.Frame{[]byte("hello")})
//
// # Addresses
//
// [ParseAddr] lists the forms of addresses. [LookupHostname], [LookupInterface] and
// [LookupLikeNCCL] find an address of this machine to listen on. A listener on the wildcard address
// advertises to each peer the address through which that peer has connected, see
// [transport.AddressTranslator].
//
// # Dead peers
//
// A peer that exits, or is killed, closes its connections; this end sees io.EOF or a reset. A peer
// whose machine or network fails sends nothing. Kernel keepalive detects that on an idle
// connection: NextFrame fails with ETIMEDOUT, after 30 seconds by default, see [WithKeepAlive].
// While sent bytes are not acknowledged, the kernel uses retransmission timeouts instead of
// keepalive, which take about 15 minutes; [WithUserTimeout] shortens that.
//
// # TLS
//
// With [WithTLS] connections use TLS 1.3 from the first byte on, and both ends can require
// certificates:
//
//	pool := x509.NewCertPool() // certificates of the authorities
//	config := &tls.Config{
//		Certificates: []tls.Certificate{own},
//		RootCAs:      pool, // for listeners
//		ClientCAs:    pool, // for clients
//		ClientAuth:   tls.RequireAndVerifyClientCert,
//	}
//	tr := uv.New(uv.WithTLS(config, config))
//
// Such a transport never falls back to plain TCP, and a plain one never upgrades to TLS. If one end
// uses TLS and the other one does not, both ends get an error that matches [ErrTLSMismatch]. C++
// peers do not support TLS. All connections of a pipe are made by one transport, so they are all
// TLS or all plain. The [tls.ConnectionState] of a connection identifies the peer, see
// [transport.Identified].
//
// A connection that ends without TLS's close_notify was cut off, perhaps by an attacker: that is
// io.ErrUnexpectedEOF, never io.EOF. So a killed peer looks like one whose network failed, whereas
// on plain TCP it looks like one that has closed.
//
// A listener gives each peer ten seconds for its handshake. Accept returns connections in the order
// in which their handshakes end. It also returns connections whose handshake failed; their calls
// return the reason.
//
// If both ends have negotiated the application protocol "tensorpipe-uv", which this package offers,
// the listening end sends an empty frame after it has accepted the client's certificate, and Dial
// waits for that frame: TLS alone would let the client go on before it was accepted.
//
// # Streams and sessions
//
// A connection can become a stream of bytes or a session of streams, see [transport.Multiplexer].
// A goroutine that waits for a message of a session polls for a while before it blocks,
// because replies are expected there, see [WithSpin]. A stream blocks at once.
package uv

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// descriptor is the domain descriptor of TensorPipe's transport. It claims that any process can
// reach any other one; dialling shows whether that holds.
const descriptor = "uv:*"

// Transport is the transport over TCP. It implements [transport.Transport]. Its methods may be
// called concurrently.
type Transport struct {
	resolver    *net.Resolver
	keepAlive   net.KeepAliveConfig
	userTimeout time.Duration
	wait        wait.Config // of sessions
	tls         *roles      // nil without TLS
}

// Option sets a property of the Transport that New returns.
type Option func(*Transport)

// WithKeepAlive sets the TCP keepalive of connections, by which the kernel detects that an idle
// peer is dead. After c.Idle without traffic the kernel sends a probe every c.Interval, and fails
// the connection after c.Count unanswered probes. Durations are rounded up to seconds. Zero values
// mean Go's defaults of 15 s, 15 s and 9. If c.Enable is false, a dead idle peer is never detected.
// Without this option the values are 15 s, 5 s and 3.
//
// The setting concerns this end only; all peers answer probes.
func WithKeepAlive(c net.KeepAliveConfig) Option {
	return func(t *Transport) { t.keepAlive = c }
}

// WithUserTimeout sets how long sent bytes may stay unacknowledged before the connection fails with
// ETIMEDOUT. d is rounded down to milliseconds, but a positive d to at least one. If d is 0 or
// negative, without this option, and on systems other than Linux, the kernel decides.
//
// In Linux this has two other effects. It overrides the Count of keepalive. And a peer that is
// alive but has not read for that long, so that its window is closed, counts as dead: the timeout
// must be longer than any pause of a slow reader.
func WithUserTimeout(d time.Duration) Option {
	return func(t *Transport) { t.userTimeout = d }
}

// WithResolver sets the resolver of host names for Listen and Dial. Without it, or if r is nil, the
// transport uses net.DefaultResolver.
func WithResolver(r *net.Resolver) Option {
	return func(t *Transport) { t.resolver = r }
}

// WithSpin sets how long a goroutine that waits for a message of a session polls before it
// blocks. The default is 200 µs; 0 disables polling. Polling costs processor time, and saves each
// end about 20 µs of waking up if replies come soon. The reader stops polling while replies do not
// come soon. Connections that are not sessions never poll, and on systems other than Linux no
// connection does.
func WithSpin(d time.Duration) Option {
	return func(t *Transport) { t.wait.Spin = d }
}

// WithBusyPolling makes the goroutines that wait for messages of sessions poll until a message arrives, also
// after the time of [WithSpin]: after a rest a message then need not wait until a sleeping processor
// is awake. It is off by default.
//
// While any session of the process with this option, or that of package shm, waits for its peer, one
// goroutine polls for all of them. That takes one processor, whose time also counts against the quota
// of a container. The process should have other processors for its work. If it has one (GOMAXPROCS=1)
// the polling takes what other goroutines and processes leave, and messages wait for their turns. A
// poll of a connection takes 0.4 µs, so that with hundreds of connections a message waits for longer
// than a processor needs to wake.
//
// Connections that are not sessions never poll, and on systems other than Linux no connection does.
func WithBusyPolling() Option {
	return func(t *Transport) { t.wait.Busy = true }
}

// New returns a transport over TCP with the options opts. It opens no sockets.
func New(opts ...Option) *Transport {
	t := &Transport{
		resolver: net.DefaultResolver,
		wait:     wait.Config{Spin: wait.Spin},
		keepAlive: net.KeepAliveConfig{
			Enable:   true,
			Idle:     15 * time.Second,
			Interval: 5 * time.Second,
			Count:    3,
		},
	}
	for _, opt := range opts {
		opt(t)
	}
	return t
}

// WithAckTimeout returns a copy of t whose connections fail once bytes that they have sent have
// been unacknowledged for d, see [WithUserTimeout]. t does not change. It implements
// [transport.AckTimeouter].
func (t *Transport) WithAckTimeout(d time.Duration) transport.Transport {
	bounded := *t
	bounded.userTimeout = d
	return &bounded
}

// With returns a copy of t to which options are applied as by [New]; t does not change. An option
// replaces what t has of the same kind.
func (t *Transport) With(options ...Option) *Transport {
	changed := *t
	for _, o := range options {
		o(&changed)
	}
	return &changed
}

// viable opens a listener on the loopback interface of either family.
var viable = probe.Once("uv", func() error {
	_, err := bindable("127.0.0.1")
	if err != nil {
		_, err = bindable("::1")
	}
	return err
})

// Viable returns nil if this process can open a TCP listener on the loopback interface, and
// otherwise an error with the reason, which matches [transport.ErrNotSupported]. It tries once for
// the whole process and returns the same result afterwards.
func (t *Transport) Viable() error { return viable() }

// DomainDescriptor returns "uv:*", which means that any process can be reached by TCP.
func (t *Transport) DomainDescriptor() string { return descriptor }

// CanCommunicate reports whether remote, the peer's domain descriptor, is "uv:*", that of TCP.
func (t *Transport) CanCommunicate(remote string) bool { return remote == descriptor }

// Dial connects to addr, which has one of the forms of [ParseAddr] with a host and a port. It tries all
// addresses of a host name, in the order and with the delays of package net. ctx bounds the call
// only, not the lifetime of the connection. The error is an *AddrError or a *DialError.
//
// With TLS, Dial also performs the handshake. If the listener is of this package, Dial returns only
// after the listener has accepted this end's certificate. The peer must prove a name: the text
// after a "#" in addr, as in "192.0.2.1:7000#node17", or without one the ServerName of the client
// configuration or, if that is empty, the host in addr. A pipe uses the "#" for its further
// connections, see [Transport.Reach].
func (t *Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	var name string
	if t.tls != nil {
		addr, name, _ = strings.Cut(addr, nameSeparator)
	}
	a, err := ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	if a.Host == "" {
		return nil, &AddrError{Addr: addr, Reason: "no host to dial"}
	}
	if a.Port == 0 {
		return nil, &AddrError{Addr: addr, Reason: "no port to dial"}
	}
	c, err := t.dial(ctx, a, name)
	if err != nil {
		return nil, &DialError{Addr: a.String(), Err: err}
	}
	return c, nil
}

func (t *Transport) dial(ctx context.Context, a Addr, name string) (transport.Conn, error) {
	if t.tls != nil && t.tls.client == nil {
		return nil, fmt.Errorf("%w: WithTLS got no client configuration", ErrTLSConfig)
	}
	d := net.Dialer{
		Resolver:        t.resolver,
		KeepAlive:       -1, // otherwise Go would enable it if the configuration does not
		KeepAliveConfig: t.keepAlive,
		Control:         t.control,
	}
	failpoint.Here()
	c, err := d.DialContext(ctx, "tcp", a.String())
	if err != nil {
		return nil, err
	}
	tcp := c.(*net.TCPConn)
	if t.tls == nil {
		return newConn(tcp, tcp, t.wait), nil
	}
	return dialTLS(ctx, tcp, t.tls.clientConfig(a.Host, name), t.wait)
}

// withinMachine reports whether the two ends of a TCP connection are on one machine, to judge by
// their addresses: both are loopback addresses, or their IP addresses are equal. It returns false
// if either is nil, as for a socket that is no longer connected, or no *net.TCPAddr.
func withinMachine(local, remote net.Addr) bool {
	a, ok := local.(*net.TCPAddr)
	b, same := remote.(*net.TCPAddr)
	return ok && same && (a.IP.Equal(b.IP) || a.IP.IsLoopback() && b.IP.IsLoopback())
}
