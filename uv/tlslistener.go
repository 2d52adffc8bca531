package uv

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// backlog is how many connections may be in their handshakes or wait for
	// Accept; more wait in the kernel.
	backlog = 128

	// patience is how long a handshake may take.
	patience = 10 * time.Second
)

// tlsListener takes connections from the kernel by itself, as the handshakes
// of those who dial must depend neither on somebody calling Accept nor on each
// other.
type tlsListener struct {
	*listener
	roles  *roles
	places chan struct{} // one taken for each connection not yet accepted
	queue  chan *tlsConn // with room for as many
	failed chan error    // of the kernel's accept
	inLine sync.Mutex    // held to enter the queue

	closing context.Context
	hangUp  context.CancelFunc
	run     sync.WaitGroup
	stop    func()
}

func newTLSListener(tcp *net.TCPListener, r *roles, spin time.Duration) *tlsListener {
	l := &tlsListener{
		listener: newListener(tcp, spin),
		roles:    r,
		places:   make(chan struct{}, backlog),
		queue:    make(chan *tlsConn, backlog),
		failed:   make(chan error),
	}
	l.closing, l.hangUp = context.WithCancel(context.Background())
	l.stop = sync.OnceFunc(l.end)
	l.run.Go(l.collect)
	return l
}

// collect runs until the listener is closed.
func (l *tlsListener) collect() {
	for {
		select {
		case l.places <- struct{}{}:
		case <-l.done:
			return
		}
		tcp, err := l.tcp.AcceptTCP()
		if err == nil {
			l.run.Go(func() { l.receive(tcp) })
			continue
		}
		<-l.places
		select {
		case l.failed <- err:
		case <-l.done:
			return
		}
	}
}

// receive does the server's part of a handshake. A peer that it turns away is
// queued too, as an error for whoever calls Accept.
func (l *tlsListener) receive(tcp *net.TCPConn) {
	s := newSocket(tcp, false)
	c := newTLSConn(s, tls.Server(s, l.roles.server), l.spin)
	stop := context.AfterFunc(l.closing, func() { tcp.Close() })
	tcp.SetDeadline(time.Now().Add(l.roles.patience))
	if err := c.tls.Handshake(); err != nil {
		c.failed = &HandshakeError{Peer: c.remote, Err: err}
		c.turnAway(err)
	}
	stop()
	tcp.SetDeadline(time.Time{})
	l.enqueue(c)
}

// enqueue makes the order of the welcomes that of the queue: who dials one
// after the other is accepted so.
func (l *tlsListener) enqueue(c *tlsConn) {
	l.inLine.Lock()
	defer l.inLine.Unlock()
	if c.failed == nil {
		if err := c.sendWelcome(); err != nil {
			c.failed = &HandshakeError{Peer: c.remote, Err: err}
		}
	}
	l.queue <- c
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
		<-l.places
		return c, nil
	case err := <-l.failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.done:
		return nil, transport.ErrClosed
	}
}

func (l *tlsListener) Close() error {
	l.stop()
	return nil
}

// end closes what nobody accepted.
func (l *tlsListener) end() {
	l.shut()
	l.hangUp()
	l.run.Wait()
	for {
		select {
		case c := <-l.queue:
			c.Close()
		default:
			return
		}
	}
}
