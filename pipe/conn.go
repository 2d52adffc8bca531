package pipe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Conn is an ordered stream of bytes to another process: the [net.Conn] that [Context.DialConn] and
// the listeners of [Context.ListenConn] and [Listener.Conns] return. The Conns of one context to
// one url are streams of one session, so a further one costs no handshake and no connection.
//
// All methods may be called concurrently. Errors are of type [*net.OpError], except io.EOF: they
// match [os.ErrDeadlineExceeded] after a deadline, ErrClosed after Close of the Conn or its
// context, syscall.ECONNRESET if the peer has refused the Conn, ErrLimit if this end has ended the
// session because of Limits.UnadmittedBytes, and ErrPeerLost if the session has ended before the
// Conn otherwise. Buffers belong to the caller again when a call returns.
type Conn struct {
	stream  transport.Stream
	session *connSession
	closed  atomic.Bool
}

var _ net.Conn = (*Conn)(nil)

// Read implements [net.Conn]. It returns io.EOF once the peer has called CloseWrite or Close and
// everything that it wrote before was read.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.stream.Read(b)
	return n, c.opError("read", err)
}

// Write implements [net.Conn]. It blocks while too many written bytes have not been read by the
// peer, and returns how many bytes of b it has written, fewer than len(b) only with an error.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.stream.Write(b)
	return n, c.opError("write", err)
}

// CloseWrite ends writing: the peer reads the bytes written before, then io.EOF, and blocked and
// later writes of this end fail with an error that matches ErrClosed. Reading goes on.
func (c *Conn) CloseWrite() error { return c.opError("close", c.stream.CloseWrite()) }

// Close implements [net.Conn]. Blocked calls return, and later reads and writes fail. The peer
// reads the bytes written before, then io.EOF, and its writes fail. Close does not wait for the
// peer to read. The first call returns nil, unless the stream cannot be closed. Later calls return
// an error that matches ErrClosed.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return c.opError("close", ErrClosed)
	}
	defer c.session.release()
	return c.opError("close", c.stream.Close())
}

// LocalAddr and RemoteAddr implement [net.Conn]. They return the addresses of the two ends of the
// session, which all its Conns share, and which stay available after Close.
func (c *Conn) LocalAddr() net.Addr  { return c.stream.LocalAddr() }
func (c *Conn) RemoteAddr() net.Addr { return c.stream.RemoteAddr() }

// SetDeadline implements [net.Conn]: it sets the deadlines of SetReadDeadline and SetWriteDeadline
// to t. After Close the error matches ErrClosed.
func (c *Conn) SetDeadline(t time.Time) error { return c.opError("set", c.stream.SetDeadline(t)) }

// SetReadDeadline implements [net.Conn]: Reads fail with an error that matches
// os.ErrDeadlineExceeded after t, also those that are blocked. The zero time is no deadline.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.opError("set", c.stream.SetReadDeadline(t))
}

// SetWriteDeadline implements [net.Conn]: Writes fail with an error that matches
// os.ErrDeadlineExceeded after t, also those that are blocked. The zero time is no deadline.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.opError("set", c.stream.SetWriteDeadline(t))
}

// TLS returns the state of the TLS connection that carries the session, with the peer's
// certificates, and true. Without TLS, as through shared memory, it returns a zero state and false.
// It may be called after Close.
func (c *Conn) TLS() (tls.ConnectionState, bool) {
	if state := c.session.identity.TLS; state != nil {
		return *state, true
	}
	return tls.ConnectionState{}, false
}

// Plan returns the path of the session, with the transports that were not chosen and the reasons.
// All Conns of the session share the result, which must not be changed.
func (c *Conn) Plan() *Plan { return c.session.plan }

// Admit stops counting the memory of all Conns of this session against Limits.UnadmittedBytes, and
// releases the bytes that they hold of it. An application calls it when it trusts the peer. Admit
// has no effect on a Conn that this end has dialled, or whose session is admitted already.
func (c *Conn) Admit() { c.session.account.Close() }

// opError returns a *net.OpError for err, the error of the call op on the stream. Unless err is
// that of a deadline, or c is closed, the *net.OpError wraps streamError(err) instead of err. If
// err is nil or io.EOF, opError returns err unchanged.
func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) && !c.closed.Load() {
		err = c.session.streamError(err)
	}
	return &net.OpError{Op: op, Net: c.session.plan.Transport, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// DialConn opens a Conn to the listener of Conns at url, which [Context.ListenConn] or
// [Listener.Conns] has opened, and returns it, a [*Conn], which the caller must close. The first
// Conn to a url opens a session, by the best transport that both ends share and the policy allows;
// later ones are streams of it, and need no handshake. A session without a Conn is closed after 10
// seconds. ctx bounds the call only, not the life of the Conn; HandshakeTimeout bounds the
// opening of a session.
//
// On failure DialConn returns nil and an [*Error], which matches ErrNotAccepted if the listener
// does not accept Conns, ErrDialect if either end is configured for the compatible dialect or the
// peer is a C++ process or an older version of this library, ErrLimit if the listener permits no
// further Conn of this context (its Limits.MaxConns) or no further session (MaxConnSessions), or an
// error that [Context.Dial] returns.
func (c *Context) DialConn(ctx context.Context, url string) (net.Conn, error) {
	conn, err := c.dialConn(ctx, url)
	if err != nil {
		return nil, &Error{Op: "dial", Peer: url, Err: err}
	}
	return conn, nil
}

// dialConn returns a new Conn of the session to url, which it opens if there is none. If a session
// that another call has opened proves to have ended, dialConn tries again with the next one. The
// error is that of DialConn, without the *Error.
func (c *Context) dialConn(ctx context.Context, url string) (*Conn, error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		s, isNew, err := c.sessionTo(ctx, url)
		if err != nil {
			return nil, err
		}
		conn, err := s.openConn(ctx)
		if err == nil || isNew || !s.isOver() || ctx.Err() != nil {
			return conn, err
		}
	}
}

// dialledSession is a session to one url that DialConn has opened or is opening.
type dialledSession struct {
	ready   chan struct{} // closed when session or err is set
	session *connSession
	err     error
}

// isUsable reports whether a further Conn may use d: it is being opened, or is open.
func (d *dialledSession) isUsable() bool {
	select {
	case <-d.ready:
		return d.err == nil && !d.session.isOver()
	default:
		return true
	}
}

// sessionTo returns the session to url, and opens one if there is none that can be used; isNew is
// true if this call has done so. Concurrent calls open one session together, which goes on if the
// ctx of one of them ends. The error is ErrClosed if the context is closed, the cause of ctx, or
// that of the handshake; isNew then has no meaning.
func (c *Context) sessionTo(ctx context.Context, url string) (s *connSession, isNew bool, err error) {
	c.mu.Lock()
	if c.closing.Err() != nil {
		c.mu.Unlock()
		return nil, false, ErrClosed
	}
	d := c.dialled[url]
	if d == nil || !d.isUsable() {
		d, isNew = &dialledSession{ready: make(chan struct{})}, true
		c.dialled[url] = d
		c.work.Go(func() { c.openSession(url, d) })
	}
	c.mu.Unlock()
	select {
	case <-d.ready:
		return d.session, isNew, d.err
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}

// openSession opens a session to url, sets the result in d and closes d.ready. After a failure, and
// when the session is closed, the context forgets d.
func (c *Context) openSession(url string, d *dialledSession) {
	defer close(d.ready)
	forget := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.dialled[url] == d {
			delete(c.dialled, url)
		}
	}
	d.err = c.dial(context.Background(), url, true, func(conns *handshakeConns, s *spec) (err error) {
		d.session, err = c.buildSession(conns, s, clientIdleTime, forget)
		return err
	})
	if d.err != nil {
		c.counters.handshakesFailed.Add(1)
		forget()
		return
	}
	c.counters.handshakesDone.Add(1)
}

// errConnsNeedNative returns an error that matches ErrDialect, for a Conn where the native dialect
// is not possible. reason is why, or empty if the Options of this end forbid that dialect.
func errConnsNeedNative(reason string) error {
	if reason == "" {
		reason = "Options.Dialect forbids it"
	}
	return fmt.Errorf("%w: a Conn needs the %s one: %s", ErrDialect, DialectNative, reason)
}
