package pipe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
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
// session because of Limits.UnadmittedBytes, and ErrPeerLost if the session has ended for any other
// reason before the Conn was closed. Buffers belong to the caller again when a call returns.
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

// errConnsNeedNative returns an error that matches ErrDialect, for a Conn where the native dialect
// is not possible. reason is why, or empty if the Options of this end forbid that dialect.
func errConnsNeedNative(reason string) error {
	if reason == "" {
		reason = "Options.Dialect forbids it"
	}
	return fmt.Errorf("%w: a Conn needs the %s one: %s", ErrDialect, DialectNative, reason)
}

// ListenConn opens a listener of Conns, which the caller must close, at each of urls. Its Accept
// returns a [*Conn] for each call of [Context.DialConn] at a peer. The urls, ctx and the errors are
// those of [Context.Listen]. The listener rejects pipes; [Listener.Conns] accepts both on the same
// urls. Its Addr is that of the best transport, as a url to dial, such as "uv://127.0.0.1:7000".
//
// Any process that reaches the listener may open a session of up to Limits.MaxConns Conns, in at
// most Limits.MaxConnSessions sessions; Limits.UnadmittedBytes bounds the unread bytes of all of
// them. TLS with client certificates, or a secret in the application's protocol, authenticates
// peers. A session without a Conn is closed after a minute.
func (c *Context) ListenConn(ctx context.Context, urls ...string) (net.Listener, error) {
	l, err := c.listen(ctx, urls, true)
	if err != nil {
		return nil, &Error{Op: "listen", Err: err}
	}
	return l.Conns(), nil
}

// Conns makes the listener accept Conns in addition to pipes, and returns the [net.Listener] that
// returns them; all calls return the same one. Its Close makes l reject Conns, and leaves l open
// otherwise; Close of l closes it too. Conns that it has returned stay open.
func (l *Listener) Conns() net.Listener {
	conns := &connListener{listener: l, queue: make(chan *Conn)}
	conns.closing, conns.stop = context.WithCancel(l.closing)
	if l.conns.CompareAndSwap(nil, conns) {
		return conns
	}
	conns.stop()
	return l.conns.Load()
}

// accepts returns nil if the listener accepts a pipe or, if forConns is set, a session of Conns.
// The error matches ErrNotAccepted or, if there are too many sessions, ErrLimit.
func (l *Listener) accepts(forConns bool) error {
	conns, c := l.conns.Load(), l.context
	switch used, limit := c.connSessions.InUse(), c.connSessions.Size(); {
	case !forConns && l.connsOnly:
		return fmt.Errorf("%w: it accepts Conns, which DialConn opens, and no pipes", ErrNotAccepted)
	case forConns && (conns == nil || conns.closing.Err() != nil):
		return fmt.Errorf("%w: it accepts pipes only; Listener.Conns accepts both, ListenConn Conns", ErrNotAccepted)
	case forConns && used >= limit:
		return limitError("sessions (Limits.MaxConnSessions)", uint64(used+1), uint64(limit))
	}
	return nil
}

// serveConns ends the handshake of a session of Conns: it builds the session from s and starts a
// goroutine that passes its Conns to the listener. On failure it releases s and returns the error.
func (h *serverHandshake) serveConns(s *spec) error {
	c, conns := h.listener.context, h.listener.conns.Load()
	if !c.connSessions.TryAcquire(1) {
		s.release()
		return limitError("sessions (Limits.MaxConnSessions)", uint64(c.connSessions.InUse()+1), uint64(c.connSessions.Size()))
	}
	release := sync.OnceFunc(func() { c.connSessions.Release(1) })
	session, err := c.buildSession(h.conns, s, serverIdleTime, release)
	if err != nil {
		release()
		s.release()
		return err
	}
	c.counters.handshakesDone.Add(1)
	c.work.Go(func() { conns.serve(session) })
	return nil
}

// connListener is the net.Listener of a Listener's Conns. Conns that wait for Accept stay in their
// sessions, which bound their number.
type connListener struct {
	listener *Listener
	queue    chan *Conn
	closing  context.Context
	stop     context.CancelFunc
}

// serve accepts the Conns that the peer opens in s, and passes each to a call of Accept, until s
// has ended. Once l is closed, it closes further Conns instead. s closes after its last Conn once l
// is closed or serve has returned.
func (l *connListener) serve(s *connSession) {
	defer context.AfterFunc(l.closing, s.closeAfterLastConn)()
	defer s.closeAfterLastConn()
	for {
		stream, err := s.session.Accept(context.Background())
		if err != nil {
			return
		}
		if s.acquire() != nil {
			_ = stream.Close()
			continue
		}
		conn := &Conn{stream: stream, session: s}
		select {
		case l.queue <- conn:
		case <-l.closing.Done():
			_ = conn.Close()
		}
	}
}

// Accept implements [net.Listener]. It blocks until a peer has opened a Conn, and returns it, a
// [*Conn], which the caller must close. After Close, or once the Listener or the context is closed,
// the error matches ErrClosed.
func (l *connListener) Accept() (net.Conn, error) {
	select {
	case <-l.closing.Done():
	default:
		select {
		case conn := <-l.queue:
			return conn, nil
		case <-l.closing.Done():
		}
	}
	return nil, &Error{Op: "accept", Err: ErrClosed}
}

// Close implements [net.Listener]. It makes Accept fail, makes the Listener reject Conns, and makes
// the sessions close the Conns that Accept has not returned. If the listener is for Conns only,
// Close closes it. The error is always nil.
func (l *connListener) Close() error {
	l.stop()
	if l.listener.connsOnly {
		return l.listener.Close()
	}
	return nil
}

// Addr implements [net.Listener]. It returns the first url of the listener, as DialConn takes it.
func (l *connListener) Addr() net.Addr { return urlAddr(l.listener.URLs()[0]) }

// urlAddr is a url as a net.Addr, with the transport as its network.
type urlAddr string

// Network returns the transport of the url.
func (a urlAddr) Network() string {
	name, _, _ := strings.Cut(string(a), "://")
	return name
}

// String returns the url.
func (a urlAddr) String() string { return string(a) }
