package uv

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// protocol is what two ends of ours agree on by ALPN. It says that the
	// listening end sends an empty frame first.
	protocol = "tensorpipe-uv"

	// nameMark separates an address from the name that its owner must prove.
	nameMark = "#"
)

// WithTLS makes all connections TLS 1.3, those that are dialled by client and
// those that are accepted by server. Both may be the same Config, nil is for
// a role that is not wanted: Dial or Listen then returns [ErrTLSConfig].
//
// What counts is what the Configs hold now; their callbacks are asked for each
// connection, so that certificates can be renewed. TLS versions below 1.3 are
// refused whatever the Configs say. All other decisions are theirs, such as
// whether clients need certificates (ClientAuth).
func WithTLS(client, server *tls.Config) Option {
	return func(t *Transport) {
		t.tls = &roles{client: harden(client), server: hardenServer(server), patience: patience}
	}
}

// roles holds a configuration for each end, nil where there is none.
type roles struct {
	client, server *tls.Config
	patience       time.Duration // for those who dial
}

// harden returns a copy of c that refuses old versions. Small records, by
// which crypto/tls starts a connection, help browsers only.
func harden(c *tls.Config) *tls.Config {
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

// hardenServer hardens also what the callback of c returns in its place.
func hardenServer(c *tls.Config) *tls.Config {
	c = harden(c)
	if c == nil || c.GetConfigForClient == nil {
		return c
	}
	ask := c.GetConfigForClient
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		other, err := ask(hello)
		return harden(other), err
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

// clientFor is the configuration for dialling host, which has to prove name if
// there is one.
func (r *roles) clientFor(host, name string) *tls.Config {
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

// serverName is host as certificates have it.
func serverName(host string) string {
	host, _, _ = strings.Cut(host, "%")
	return strings.TrimSuffix(host, ".")
}

// looksLikeTLS reports whether the start of a connection is a record of TLS in
// the clear: the alert of an end that was not spoken to in TLS, or the hello
// of one that starts a handshake.
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

// tlsRecord is the first byte of a record.
type tlsRecord byte

const (
	alertRecord     tlsRecord = 21
	handshakeRecord tlsRecord = 22
)

// alert is the fatal alert "unexpected message". A plain peer of ours knows by
// it what it met; to one that does not, it is the beginning of a header that
// never ends.
var alert = [...]byte{byte(alertRecord), 3, 3, 0, 2, 2, 10}
