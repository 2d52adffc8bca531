package uv

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// backlog bounds the connections whose handshake is in progress or that were not yet accepted.
	// More wait in the kernel.
	backlog = 128

	// handshakeTimeout bounds a handshake.
	handshakeTimeout = 10 * time.Second
)

// tlsListener listens for connections over TLS. It accepts them from the kernel in a goroutine and
// performs each handshake in another, because handshakes must not depend on calls of Accept or on
// each other.
type tlsListener struct {
	*listener
	roles   *roles
	slots   chan struct{} // one is taken for each connection that was not accepted
	queue   chan *tlsConn // has the same capacity
	failed  chan error    // errors of accept(2)
	queueMu sync.Mutex    // serializes acceptances and queueing

	closing         context.Context
	abortHandshakes context.CancelFunc
	goroutines      sync.WaitGroup
	stopping        sync.Once // runs what Close does
}

func newTLSListener(tcp *net.TCPListener, r *roles, waits wait.Config) *tlsListener {
	l := &tlsListener{
		listener: newListener(tcp, waits),
		roles:    r,
		slots:    make(chan struct{}, backlog),
		queue:    make(chan *tlsConn, backlog),
		failed:   make(chan error),
	}
	l.closing, l.abortHandshakes = context.WithCancel(context.Background())
	l.goroutines.Go(l.acceptLoop)
	return l
}

// acceptLoop accepts connections from the kernel and starts a goroutine for the handshake of each,
// until the listener is closed. It pauses while 128 connections are in a handshake or wait for
// Accept. It passes an error of accept(2) to a call of Accept before it goes on.
func (l *tlsListener) acceptLoop() {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.done:
			return
		}
		tcp, err := l.tcp.AcceptTCP()
		if err == nil {
			l.goroutines.Go(func() { l.handshake(tcp) })
			continue
		}
		<-l.slots
		select {
		case l.failed <- err:
		case <-l.done:
			return
		}
	}
}

// handshake performs the server's TLS handshake on tcp, for at most the handshake timeout of
// l.roles, and queues the connection, which owns tcp, for Accept. If the client uses this package,
// handshake sends it an empty frame, which means that its certificate was accepted. A connection
// whose handshake failed is queued too; its calls return the reason. The caller has taken a slot of
// l, so that queueing does not block.
func (l *tlsListener) handshake(tcp *net.TCPConn) {
	s := &socket{TCPConn: tcp, src: tcp}
	c := newTLSConn(s, tls.Server(s, l.roles.server), l.waits)
	stop := context.AfterFunc(l.closing, func() { tcp.Close() })
	tcp.SetDeadline(time.Now().Add(l.roles.handshakeTimeout))
	if err := c.tls.Handshake(); err != nil {
		c.failed = &HandshakeError{Peer: c.remote, Err: err}
		c.reject(err)
	}
	stop()
	tcp.SetDeadline(time.Time{})
	l.queueMu.Lock() // so that clients that dial one after the other are accepted in that order
	defer l.queueMu.Unlock()
	if c.failed == nil && c.tls.ConnectionState().NegotiatedProtocol == protocol {
		// The empty frame by which the client learns that its certificate was accepted. The socket is
		// empty, so this does not block.
		if _, err := c.tls.Write(frame.AppendHeader(nil, 0)); err != nil {
			c.failed = &HandshakeError{Peer: c.remote, Err: err}
		}
	}
	l.queue <- c // does not block: a slot was taken for c
}

func (l *tlsListener) Accept(ctx context.Context) (transport.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case <-l.done:
		return nil, transport.ErrClosed
	default:
	}
	select {
	case c := <-l.queue:
		<-l.slots
		return c, nil
	case err := <-l.failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.done:
		return nil, transport.ErrClosed
	}
}

// Close stops listening. Blocked calls of Accept return ErrClosed. Close aborts the handshakes in
// progress, waits until the goroutines of the listener have ended, and closes the connections that
// were not accepted. Accepted connections stay open. It returns nil, and does nothing when called
// again.
func (l *tlsListener) Close() error {
	l.stopping.Do(func() {
		l.shut()
		l.abortHandshakes()
		l.goroutines.Wait()
		for {
			select {
			case c := <-l.queue:
				c.Close()
			default:
				return
			}
		}
	})
	return nil
}
