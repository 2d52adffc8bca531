package uv

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// lingerTime and lingerBytes bound how long a peer that is turned away is
	// listened to.
	lingerTime  = time.Second
	lingerBytes = 64 << 10
)

// dialTLS does the client's part on tcp, which it closes where that fails.
func dialTLS(ctx context.Context, tcp *net.TCPConn, config *tls.Config, spin time.Duration) (transport.Conn, error) {
	s := newSocket(tcp, true)
	c := newTLSConn(s, tls.Client(s, config), spin)
	c.name = config.ServerName
	stop := context.AfterFunc(ctx, func() { tcp.Close() })
	err := c.introduce()
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		tcp.Close()
		return nil, err
	}
	return c, nil
}

// introduce returns when the listening end has accepted this one.
func (c *tlsConn) introduce() error {
	err := c.tls.Handshake()
	if err == nil && c.tls.ConnectionState().NegotiatedProtocol == protocol {
		err = c.readWelcome()
	}
	if err != nil {
		return &HandshakeError{Peer: c.remote, Err: err}
	}
	return nil
}

func (c *tlsConn) readWelcome() error {
	n, err := c.frames.Next()
	switch {
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	case err == nil && n > 0:
		return fmt.Errorf("%w: %d bytes where the empty frame of welcome should be", transport.ErrFrame, n)
	}
	return err
}

// sendWelcome tells a peer that waits for it that it has been accepted. It
// does not block: the kernel has room for a first record.
func (c *tlsConn) sendWelcome() error {
	if c.tls.ConnectionState().NegotiatedProtocol != protocol {
		return nil
	}
	_, err := c.tls.Write(frame.AppendHeader(nil, 0))
	return err
}

// turnAway sees to it that the peer learns why: closing at once, while it
// still sends, would make its kernel throw away what it was told.
func (c *tlsConn) turnAway(why error) {
	c.tcp.SetDeadline(time.Now().Add(lingerTime))
	if errors.Is(why, ErrTLSMismatch) {
		c.tcp.Write(alert[:])
	}
	c.tcp.CloseWrite()
	io.CopyN(io.Discard, c.tcp, lingerBytes)
}
