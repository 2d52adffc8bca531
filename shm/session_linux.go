package shm

import (
	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Multiplex implements [transport.Multiplexer]. The session has memory of its own,
// and that of the connection is given back once both ends have changed over. With
// a peer that cannot be rung it is one of yamux on the connection's rings.
func (c *conn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.handOver()
	if err != nil {
		return nil, err
	}
	if !c.rings {
		return mux.New(s, cfg)
	}
	if err := c.sayChangeOver(); err != nil {
		return nil, err
	}
	at := ringnet.Addresses{Local: s.LocalAddr(), Remote: s.RemoteAddr()}
	inner, err := ringnet.NewSessionOn(c.prepared.take(), c.socket, c.left, cfg, c.spin, at)
	if err != nil {
		return nil, err
	}
	c.session.Store(inner)
	if c.closed.Load() { // Close may not have seen the session
		_ = inner.Close()
		return nil, transport.ErrClosed
	}
	_ = c.socket.SetReadDeadline(past) // attend has less to do now
	return &session{inner, c}, nil
}

// session is a conn that became one.
type session struct {
	*ringnet.Session
	conn *conn
}

// Close implements [transport.Session].
func (s *session) Close() error { return s.conn.Close() }

// awaitSession is what is left to attend to when the peer has changed over and
// this end has not: all that comes on the socket is the session's, and its end is
// that of the connection. It reports whether there is nothing more to do.
func (c *conn) awaitSession(fd uintptr) bool {
	if c.session.Load() != nil {
		return true
	}
	if !hungUp(int(fd)) {
		return false
	}
	return c.hearEnd(int(fd), nil)
}
