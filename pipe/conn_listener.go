package pipe

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
)

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

// serve passes the Conns that the peer opens in s to Accept until s has ended, and then has s
// closed after its last Conn. Once l is closed it closes further Conns, and has s closed after
// those that Accept has returned.
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

// Close implements [net.Listener]. It makes Accept fail and the Listener reject Conns, and has the
// Conns closed that Accept has not returned. If the listener is for Conns only, Close closes it.
// The error is always nil.
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
