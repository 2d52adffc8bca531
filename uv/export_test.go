package uv

import (
	"net"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// TCPConn is the socket under a connection.
func TCPConn(c transport.Conn) *net.TCPConn {
	if secure, ok := c.(*tlsConn); ok {
		return secure.tcp
	}
	return c.(*conn).tcp
}

// Protocol is what ends of ours agree on.
const Protocol = protocol

// WithPatience sets how long a TLS listener gives those who dial. It goes
// behind WithTLS.
func WithPatience(d time.Duration) Option { return func(t *Transport) { t.tls.patience = d } }

// WithinMachine decides about congestion control.
var WithinMachine = withinMachine
