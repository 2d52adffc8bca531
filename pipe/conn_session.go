package pipe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/quota"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// How long a session without Conns stays open. The server waits longer, so that it closes a session
// only if the client has failed to.
const (
	clientIdleTime = 10 * time.Second
	serverIdleTime = time.Minute
)

// connSession is a session whose streams are Conns, at either end. The end that dials opens the
// streams, and the end that listens accepts them.
type connSession struct {
	context  *Context
	session  transport.Session
	plan     *Plan
	identity transport.Identity // of the peer
	account  *quota.Account     // at the server; nil without a limit
	maxConns int                // that this end may open
	onClose  func()

	closing sync.Once

	mu       sync.Mutex
	conns    int   // open, or being opened
	ended    error // why this end closes the session; nil before
	idle     *time.Timer
	idleTime time.Duration
}

// buildSession builds a session of Conns from s, registers it with c and returns it. The session
// then owns the connections of hc, and closes itself after idleTime without a Conn. onClose is
// called once, when that session is closed. On failure it returns nil and the error; the caller
// must then close hc and release s. onClose may have been called in that case too.
func (c *Context) buildSession(hc *handshakeConns, s *spec, idleTime time.Duration, onClose func()) (*connSession, error) {
	hc.phase = phaseBuild
	if err := c.prepareSession(s, s.desc); err != nil {
		return nil, err
	}
	session, err := s.desc.(transport.Multiplexer).Multiplex(c.sessionConfig(s)) // prepareSession has checked that
	if err != nil {
		return nil, err
	}
	cs := &connSession{
		context: c, session: session, plan: s.plan, identity: transport.IdentityOf(s.desc),
		account: s.account, maxConns: s.maxConns, onClose: onClose, idleTime: idleTime,
	}
	if s.role == channel.RoleListen {
		cs.maxConns = math.MaxInt // the session itself bounds the streams of the peer
	}
	cs.idle = time.AfterFunc(idleTime, cs.closeUnused)
	if err = hc.detach(); err == nil {
		err = cs.register()
	}
	if err != nil {
		cs.close(err)
		return nil, err
	}
	return cs, nil
}

// register adds s to the sessions that Context.Close closes, and makes s close when the quota
// Limits.UnadmittedBytes evicts the peer. It returns ErrClosed after Context.Close was called, and
// an error that matches ErrLimit if the peer has been evicted.
func (s *connSession) register() error {
	c := s.context
	c.mu.Lock()
	if c.closing.Err() != nil {
		c.mu.Unlock()
		return ErrClosed
	}
	c.sessions[s] = struct{}{}
	c.mu.Unlock()
	if !s.account.OnEvict(func() { s.close(c.unadmittedError()) }) {
		return c.unadmittedError()
	}
	return nil
}

// close closes the session and all its Conns. cause is the error of their calls that fail because
// of that. If cause is ErrClosed, close first waits, up to CloseTimeout, until the peer has
// received all bytes. A further call has no effect but waits until
// the first one is done.
func (s *connSession) close(cause error) {
	s.closing.Do(func() {
		s.mu.Lock()
		s.ended = cause
		s.idle.Stop()
		s.mu.Unlock()
		if cause == ErrClosed {
			ctx, cancel := context.WithTimeout(context.Background(), s.context.opts.CloseTimeout)
			_ = s.session.Flush(ctx)
			cancel()
		}
		_ = s.session.Close()
		s.account.Close()
		s.context.mu.Lock()
		delete(s.context.sessions, s)
		s.context.mu.Unlock()
		s.onClose()
	})
}

// closeUnused closes the session if it has no Conn. The idle timer calls it.
func (s *connSession) closeUnused() {
	s.mu.Lock()
	unused := s.conns == 0 && s.ended == nil
	if unused {
		s.ended = ErrClosed // no Conn can be opened from here on
	}
	s.mu.Unlock()
	if unused {
		s.close(ErrClosed)
	}
}

// closeAfterLastConn makes the session close as soon as it has no Conn, without waiting for
// idleTime. It does not block.
func (s *connSession) closeAfterLastConn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idleTime = 0
	if s.conns == 0 && s.ended == nil {
		s.idle.Reset(0)
	}
}

// acquire counts one more Conn, which keeps the session open until release is called. If this end
// has closed the session, acquire returns the cause. If there are maxConns Conns, it returns an
// error that matches ErrLimit. After an error release must not be called.
func (s *connSession) acquire() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended != nil:
		return s.ended
	case s.conns >= s.maxConns:
		return limitError("Conns to this listener (its Limits.MaxConns)", uint64(s.conns+1), uint64(s.maxConns))
	}
	s.conns++
	s.idle.Stop()
	return nil
}

// release counts one Conn less. After the last one the session is closed as soon as idleTime has
// passed without another Conn, or at once if the session has ended.
func (s *connSession) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns--
	if s.conns > 0 || s.ended != nil {
		return
	}
	if s.session.Err() != nil {
		s.idleTime = 0
	}
	s.idle.Reset(s.idleTime)
}

// isOver reports whether the session has ended, so that no Conn can be opened in it.
func (s *connSession) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended != nil || s.session.Err() != nil
}

// openConn opens a Conn to the peer and returns it; the caller must close it. It blocks until the
// session has opened a stream or ctx ends. The error is the cause of ctx, that of acquire, or that
// of the session.
func (s *connSession) openConn(ctx context.Context) (*Conn, error) {
	if err := s.acquire(); err != nil {
		return nil, err
	}
	type result struct {
		stream transport.Stream
		err    error
	}
	opened := make(chan result)
	go func() { // Open may wait for the peer
		var r result
		r.stream, r.err = s.session.Open()
		select {
		case opened <- r:
		case <-ctx.Done():
			if r.err == nil {
				_ = r.stream.Close()
			}
			s.release()
		}
	}()
	select {
	case r := <-opened:
		if r.err != nil {
			s.release()
			return nil, s.streamError(r.err)
		}
		return &Conn{stream: r.stream, session: s}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// streamError returns the error that a Conn reports for err, the error of its stream. If this end
// has closed the session, that is the cause. If the session has ended otherwise, it is the error of
// the session as classify translates it, but one that matches ErrPeerLost instead of io.EOF. While
// the session is open, streamError returns err unchanged.
func (s *connSession) streamError(err error) error {
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if ended != nil {
		return ended
	}
	switch reason := s.session.Err(); {
	case reason == nil:
		return err
	case errors.Is(reason, io.EOF):
		return fmt.Errorf("%w: %w", ErrPeerLost, io.ErrUnexpectedEOF)
	default:
		return classify(reason)
	}
}

// countConns returns the number of Conns of c that are open or being opened, and of the sessions
// that carry them.
func (c *Context) countConns() (conns, sessions int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sessions {
		s.mu.Lock()
		conns += s.conns
		s.mu.Unlock()
	}
	return conns, len(c.sessions)
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
