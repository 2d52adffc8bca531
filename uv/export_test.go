package uv

import (
	"net"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// TCPConn returns the socket of a connection.
func TCPConn(c transport.Conn) *net.TCPConn {
	if secure, ok := c.(*tlsConn); ok {
		return secure.tcp
	}
	return c.(*conn).tcp
}

// Protocol is the ALPN protocol of this package.
const Protocol = protocol

// WithHandshakeTimeout sets the handshake timeout of a TLS listener. It must come after WithTLS.
func WithHandshakeTimeout(d time.Duration) Option {
	return func(t *Transport) { t.tls.handshakeTimeout = d }
}

// WithinMachine determines the congestion control.
var WithinMachine = withinMachine
