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

	"github.com/tensorpipe-go/tensorpipe/internal/wait"
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
// server configuration for accepting. Both may be the same Config, and either may be nil. Dial
// without a client configuration returns an error that matches [ErrTLSConfig]. So does Listen
// without a server configuration, or with one that has no certificate.
//
// New copies the Configs. Their callbacks are called for each connection, so that certificates can
// be renewed. TLS versions below 1.3 are refused whatever the Configs allow. The Configs decide
// everything else, such as whether clients need certificates (ClientAuth).
func WithTLS(client, server *tls.Config) Option {
	return func(t *Transport) {
		t.tls = &roles{client: requireTLS13(client), server: requireTLS13(server), handshakeTimeout: handshakeTimeout}
		if t.tls.server == nil || server.GetConfigForClient == nil {
			return
		}
		ask := t.tls.server.GetConfigForClient
		t.tls.server.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			other, err := ask(hello)
			return requireTLS13(other), err
		}
	}
}

// roles holds the configurations of WithTLS: one for dialling and one for accepting, each nil if
// there is none. A nil *roles means a transport without TLS.
type roles struct {
	client, server   *tls.Config
	handshakeTimeout time.Duration // of a client
}

// requireTLS13 returns a copy of c that refuses TLS versions below 1.3 and offers the application
// protocol of this package. If c does not list that protocol, the copy lists it before those of c.
// It returns nil if c is nil. The copy also disables the small records with which crypto/tls begins
// a connection, which help browsers only.
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

// clientConfig returns the TLS configuration for dialling host. The peer's certificate must be
// valid for name. If name is empty, it must be valid for the ServerName of the client configuration
// or, if that is empty too, for host. r.client must not be nil. The result may be r.client itself
// and must not be modified.
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

// serverName returns host as certificates state it: an IPv6 address without its scope, and a name
// without the dot at its end.
func serverName(host string) string {
	host, _, _ = strings.Cut(host, "%")
	return strings.TrimSuffix(host, ".")
}

// looksLikeTLS reports whether p, the first bytes of a connection, begins with an unencrypted
// record of TLS: an alert, or a hello message of a handshake. It returns false if p is shorter than
// seven bytes, the length of an alert.
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

// dialTLS performs the client's TLS handshake on tcp and returns a connection that owns tcp. If the
// server uses this package, dialTLS also waits until the server has accepted the client's
// certificate. waits determines how the reader of a session waits. The error
// is that of ctx if ctx ends during the call, and otherwise a *HandshakeError. After an error tcp
// is closed.
func dialTLS(ctx context.Context, tcp *net.TCPConn, config *tls.Config, waits wait.Config) (transport.Conn, error) {
	s := &socket{TCPConn: tcp, src: tcp, dialled: true}
	c := newTLSConn(s, tls.Client(s, config), waits)
	c.name = config.ServerName
	stop := context.AfterFunc(ctx, func() { tcp.Close() })
	err := c.tls.Handshake()
	if err == nil && c.tls.ConnectionState().NegotiatedProtocol == protocol {
		// A server of this package sends an empty frame when it has accepted the certificate.
		var n int64
		n, err = c.frames.Next()
		switch {
		case err == io.EOF:
			err = io.ErrUnexpectedEOF
		case err == nil && n > 0:
			err = fmt.Errorf("%w: %d bytes where the empty frame of the acceptance should be", transport.ErrFrame, n)
		}
	}
	if err != nil {
		err = &HandshakeError{Peer: c.remote, Err: err}
	}
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		tcp.Close()
		return nil, err
	}
	return c, nil
}

// reject ends a connection whose handshake failed with the error why, so that the peer can read the
// reason. If why matches ErrTLSMismatch, it sends an alert first. It then closes the writing half
// of the socket, and discards the peer's bytes until the peer closes, for at most rejectTimeout and
// rejectDrainBytes. If this end closed at once while the peer is sending, the peer's kernel would
// discard the alert. The caller closes c.
func (c *tlsConn) reject(why error) {
	c.tcp.SetDeadline(time.Now().Add(rejectTimeout))
	if errors.Is(why, ErrTLSMismatch) {
		c.tcp.Write(alert[:])
	}
	c.tcp.CloseWrite()
	io.CopyN(io.Discard, c.tcp, rejectDrainBytes)
}
