package uv

import (
	"net"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// TCPConn returns the TCP socket of c, a connection of this package with or without TLS. c still
// owns the socket.
func TCPConn(c transport.Conn) *net.TCPConn {
	if secure, ok := c.(*tlsConn); ok {
		return secure.tcp
	}
	return c.(*conn).tcp
}

// Protocol is the ALPN protocol of this package.
const Protocol = protocol

// WithHandshakeTimeout sets the time that a TLS listener gives to each handshake. It must come
// after WithTLS in the options of New.
func WithHandshakeTimeout(d time.Duration) Option {
	return func(t *Transport) { t.tls.handshakeTimeout = d }
}

// WithinMachine determines the congestion control.
var WithinMachine = withinMachine
