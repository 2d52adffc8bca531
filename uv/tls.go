package uv

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// protocol is the ALPN protocol of this package. It means that the listening end sends an empty
	// frame first.
	protocol = "tensorpipe-uv"

	// nameSeparator separates an address from the name that its owner must prove.
	nameSeparator = "#"
)

// WithTLS makes all connections TLS 1.3. The client configuration is used for dialling and the
// server configuration for accepting. Both may be the same Config. Without the one that it needs,
// Dial or Listen returns [ErrTLSConfig].
//
// The Configs are copied now. Their callbacks are called for each connection, so that certificates
// can be renewed. TLS versions below 1.3 are refused whatever the Configs allow. All other
// decisions are those of the Configs, such as whether clients need certificates (ClientAuth).
func WithTLS(client, server *tls.Config) Option {
	return func(t *Transport) {
		t.tls = &roles{client: requireTLS13(client), server: requireServerTLS13(server), handshakeTimeout: handshakeTimeout}
	}
}

// roles holds the configurations of WithTLS: one for dialling and one for accepting, each nil if
// there is none. A nil *roles means a transport without TLS.
type roles struct {
	client, server   *tls.Config
	handshakeTimeout time.Duration // of a client
}

// requireTLS13 returns a copy of c, or nil for nil, that refuses versions below 1.3 and offers the
// application protocol of this package. It also disables the small records with which crypto/tls
// begins a connection: they help browsers only.
func requireTLS13(c *tls.Config) *tls.Config {
	if c == nil {
		return nil
	}
	c = c.Clone()
	c.MinVersion = max(c.MinVersion, tls.VersionTLS13)
	c.DynamicRecordSizingDisabled = true
	if !slices.Contains(c.NextProtos, protocol) {
		c.NextProtos = append([]string{protocol}, c.NextProtos...)
	}
	return c
}

// requireServerTLS13 is requireTLS13 for the configuration of a listener: it applies also to the
// configurations that the callback GetConfigForClient returns.
func requireServerTLS13(c *tls.Config) *tls.Config {
	c = requireTLS13(c)
	if c == nil || c.GetConfigForClient == nil {
		return c
	}
	ask := c.GetConfigForClient
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		other, err := ask(hello)
		return requireTLS13(other), err
	}
	return c
}

func (r *roles) canDial() error {
	if r != nil && r.client == nil {
		return fmt.Errorf("%w: WithTLS got no client configuration", ErrTLSConfig)
	}
	return nil
}

func (r *roles) canListen() error {
	switch {
	case r == nil:
		return nil
	case r.server == nil:
		return fmt.Errorf("%w: WithTLS got no server configuration", ErrTLSConfig)
	case len(r.server.Certificates) == 0 && r.server.GetCertificate == nil && r.server.GetConfigForClient == nil:
		return fmt.Errorf("%w: the server configuration has no certificate", ErrTLSConfig)
	}
	return nil
}

// clientConfig returns the configuration for dialling host. The peer must prove name or, if that is
// empty, the ServerName of the client configuration or, by default, host. The result must not be
// modified.
func (r *roles) clientConfig(host, name string) *tls.Config {
	c := r.client
	switch {
	case name == "" && c.ServerName != "":
		return c
	case name == "":
		name = serverName(host)
	}
	c = c.Clone()
	c.ServerName = name
	return c
}

// serverName returns host in the form that certificates have: without the scope of an IPv6 address
// or the dot at the end of a name.
func serverName(host string) string {
	host, _, _ = strings.Cut(host, "%")
	return strings.TrimSuffix(host, ".")
}

// looksLikeTLS reports whether p, the first bytes of a connection, begins an unencrypted record of
// TLS: an alert, or the hello of a handshake. It returns false if p is shorter than an alert.
func looksLikeTLS(p []byte) bool {
	if len(p) < len(alert) || p[1] != 3 || p[2] > 4 {
		return false
	}
	switch tlsRecord(p[0]) {
	case alertRecord:
		return p[3] == 0 && p[4] == 2 && (p[5] == 1 || p[5] == 2)
	case handshakeRecord:
		return p[5] <= 2 && p[6] == 0
	}
	return false
}

// tlsRecord is the type of a TLS record, which is its first byte.
type tlsRecord byte

const (
	alertRecord     tlsRecord = 21
	handshakeRecord tlsRecord = 22
)

// alert is the fatal alert "unexpected message". A plain peer of this package recognizes it; to
// others it is the beginning of a header that is never completed.
var alert = [...]byte{byte(alertRecord), 3, 3, 0, 2, 2, 10}

const (
	// rejectTimeout and rejectDrainBytes bound how long a rejected peer is read from.
	rejectTimeout    = time.Second
	rejectDrainBytes = 64 << 10
)

// dialTLS performs the client's TLS handshake on tcp, until ctx ends, and returns the connection,
// which owns tcp. After an error, a *HandshakeError or ctx's error, tcp is closed.
func dialTLS(ctx context.Context, tcp *net.TCPConn, config *tls.Config, spin time.Duration) (transport.Conn, error) {
	s := newSocket(tcp, true)
	c := newTLSConn(s, tls.Client(s, config), spin)
	c.name = config.ServerName
	stop := context.AfterFunc(ctx, func() { tcp.Close() })
	err := c.handshake()
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		tcp.Close()
		return nil, err
	}
	return c, nil
}

// handshake performs the client's half of the TLS handshake and waits until the server has accepted
// the client's certificate, if the server is of this package. The error is a *HandshakeError.
func (c *tlsConn) handshake() error {
	err := c.tls.Handshake()
	if err == nil && c.tls.ConnectionState().NegotiatedProtocol == protocol {
		err = c.readAcceptance()
	}
	if err != nil {
		return &HandshakeError{Peer: c.remote, Err: err}
	}
	return nil
}

func (c *tlsConn) readAcceptance() error {
	n, err := c.frames.Next()
	switch {
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	case err == nil && n > 0:
		return fmt.Errorf("%w: %d bytes where the empty frame of the acceptance should be", transport.ErrFrame, n)
	}
	return err
}

// sendAcceptance sends the empty frame by which a client learns that its certificate was accepted,
// if both ends have negotiated the protocol of this package. It does not block: the socket is
// empty.
func (c *tlsConn) sendAcceptance() error {
	if c.tls.ConnectionState().NegotiatedProtocol != protocol {
		return nil
	}
	_, err := c.tls.Write(frame.AppendHeader(nil, 0))
	return err
}

// reject ends this end's half of a connection whose handshake failed because of why, and reads from
// the peer until the peer has closed, for at most rejectTimeout. If this end closed at once, while
// the peer is still sending, the peer's kernel would discard the reason. The caller closes c.
func (c *tlsConn) reject(why error) {
	c.tcp.SetDeadline(time.Now().Add(rejectTimeout))
	if errors.Is(why, ErrTLSMismatch) {
		c.tcp.Write(alert[:])
	}
	c.tcp.CloseWrite()
	io.CopyN(io.Discard, c.tcp, rejectDrainBytes)
}
