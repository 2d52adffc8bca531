// Package uv is the transport over TCP. On the wire it is TensorPipe's
// transport of the same name: each frame is its length as eight little-endian
// bytes and then its body, nothing else, from the first byte on.
//
// A transport is a plug-in that a pipe is told about, and works alone as well:
//
//	tr := uv.New()
//	l, err := tr.Listen(ctx, "0.0.0.0:7000")
//	c, err := tr.Dial(ctx, "node17:7000")
//	err = c.WriteFrames(transport.Frame{[]byte("hello")})
//
// # Addresses
//
// [ParseAddr] lists the forms. [LookupHostname], [LookupInterface] and
// [LookupLikeNCCL] find an address of this machine to listen on. A listener on
// the wildcard address tells each peer the address through which that peer
// came, see [transport.Advertiser].
//
// # Dead peers
//
// A peer that exits, or is killed, closes its connections; that arrives as
// io.EOF or a reset. A peer whose machine or network vanishes sends nothing at
// all. Kernel keepalive notices that on an idle connection: NextFrame fails
// with ETIMEDOUT, after 30 seconds by default, see [WithKeepAlive]. While sent
// bytes wait for their acknowledgement the kernel suspends keepalive and goes
// by its retransmissions, which take about 15 minutes to give up;
// [WithUserTimeout] shortens that.
//
// # TLS
//
// With [WithTLS] the frames travel in TLS 1.3, from the first byte on, and both
// ends may have to prove who they are:
//
//	pool := x509.NewCertPool() // of those who sign certificates here
//	config := &tls.Config{
//		Certificates: []tls.Certificate{mine},
//		RootCAs:      pool, // who vouches for listeners
//		ClientCAs:    pool, // who vouches for those who dial
//		ClientAuth:   tls.RequireAndVerifyClientCert,
//	}
//	tr := uv.New(uv.WithTLS(config, config))
//
// Such a transport never falls back to plain TCP, and a plain one never goes
// up to TLS; where the two meet, both ends get an error that matches
// [ErrTLSMismatch]. A C++ peer speaks no TLS. All connections of a pipe are
// made by one transport, hence are all TLS or all plain. Who the peer is says
// the [tls.ConnectionState] of a connection, see [transport.Secured].
//
// A connection that ends without the close_notify of TLS was cut off, perhaps
// by someone in between: that is io.ErrUnexpectedEOF, never io.EOF. So a killed
// peer looks like one that is lost, where on plain TCP it looks like one that
// closed.
//
// A listener gives each peer ten seconds for its handshake; Accept returns a
// connection when that has ended, in the order in which they end. One that
// failed comes out of Accept too, and says why to every call.
//
// Where both ends have agreed on the application protocol "tensorpipe-uv",
// which they offer by themselves, the listening end sends an empty frame when
// it has accepted the other's certificate, and Dial waits for it: TLS alone
// would let the dialler go on before it has been accepted.
//
// # Streams and sessions
//
// A connection can be made a stream of bytes or a session of streams, see
// [transport.Streamer] and [transport.Multiplexer]. A session is where answers
// are waited for: its reading goroutine looks for them for a while before it
// sleeps, see [WithSpin]. A stream sleeps at once.
package uv

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// descriptor is what TensorPipe's own transport says. It claims that any
// process reaches any other; dialling finds out.
const descriptor = "uv:*"

// Transport is TCP. It implements [transport.Transport].
type Transport struct {
	resolver    *net.Resolver
	keepAlive   net.KeepAliveConfig
	userTimeout time.Duration
	spin        time.Duration
	tls         *roles // nil without TLS
}

// Option changes a Transport.
type Option func(*Transport)

// WithKeepAlive sets when a silent connection counts as dead: after being idle
// for Idle the kernel asks the peer every Interval, and gives up after Count
// questions without an answer. Durations are rounded up to seconds; what is 0
// has Go's default of 15 s, 15 s and 9. Without Enable a dead idle peer is
// never noticed. The default is 15 s, 5 s and 3.
//
// The setting concerns this side only; peers of either kind answer anyway.
func WithKeepAlive(c net.KeepAliveConfig) Option {
	return func(t *Transport) { t.keepAlive = c }
}

// WithUserTimeout sets for how long sent bytes may stay unacknowledged before
// the connection fails with ETIMEDOUT, in milliseconds and on Linux only. 0,
// the default, leaves it to the kernel.
//
// Two more things follow from how Linux implements it. It overrules the Count
// of keepalive. And a peer that is alive but has stopped reading for that
// long, so that the window is closed, counts as dead: choose it longer than
// any pause that a slow reader may make.
func WithUserTimeout(d time.Duration) Option {
	return func(t *Transport) { t.userTimeout = d }
}

// WithResolver sets who turns host names into addresses; the default is
// net.DefaultResolver.
func WithResolver(r *net.Resolver) Option {
	return func(t *Transport) { t.resolver = r }
}

// WithSpin sets for how long at most who waits for a message on a session looks
// for it before going to sleep; 0 is not at all, the default 200 µs. It costs
// processor time and spares each end some 20 µs of waking up, for conversations
// whose answers come soon; where they do not it stops by itself. Other
// connections never spin, and on systems other than Linux none does.
func WithSpin(d time.Duration) Option {
	return func(t *Transport) { t.spin = d }
}

// New returns a TCP transport.
func New(opts ...Option) *Transport {
	t := &Transport{
		resolver: net.DefaultResolver,
		spin:     wait.Spin,
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

// viable opens a listener on the loopback interface of either family.
var viable = probe.Once("uv", func() error {
	_, err := bindable("127.0.0.1")
	if err != nil {
		_, err = bindable("::1")
	}
	return err
})

// Viable says whether this process may open TCP sockets at all.
func (t *Transport) Viable() error { return viable() }

// DomainDescriptor is "uv:*".
func (t *Transport) DomainDescriptor() string { return descriptor }

// CanCommunicate reports whether the peer speaks TCP too.
func (t *Transport) CanCommunicate(remote string) bool { return remote == descriptor }

// Dial connects to addr, see [ParseAddr]. A host name is tried at all its
// addresses, in the order and with the head start that package net gives them.
//
// With TLS the handshake is part of the call, and the peer has accepted this
// end's certificate when it returns. The peer has to prove the ServerName of
// the client's configuration, which by default is the host in addr. A name
// after a # in addr, as in "192.0.2.1:7000#node17", goes before both; that is
// how the further connections of a pipe are checked, see [Transport.Reach].
func (t *Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	var name string
	if t.tls != nil {
		addr, name, _ = strings.Cut(addr, nameMark)
	}
	a, err := ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	if a.Host == "" {
		return nil, &AddrError{Addr: addr, Reason: "no host to dial"}
	}
	c, err := t.dial(ctx, a, name)
	if err != nil {
		return nil, &DialError{Addr: a.String(), Err: err}
	}
	return c, nil
}

func (t *Transport) dial(ctx context.Context, a Addr, name string) (transport.Conn, error) {
	if err := t.tls.canDial(); err != nil {
		return nil, err
	}
	d := net.Dialer{
		Resolver:        t.resolver,
		KeepAlive:       -1, // or Go would enable it where the config does not
		KeepAliveConfig: t.keepAlive,
		Control:         t.control,
	}
	step.Here()
	c, err := d.DialContext(ctx, "tcp", a.String())
	if err != nil {
		return nil, err
	}
	tcp := c.(*net.TCPConn)
	if t.tls == nil {
		return newConn(tcp, t.spin), nil
	}
	return dialTLS(ctx, tcp, t.tls.clientFor(a.Host, name), t.spin)
}
