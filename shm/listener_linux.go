package shm

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// backlog bounds the connections whose handshake is in progress or that were not yet accepted. More
// wait in the kernel.
const backlog = 128

// past is a deadline that makes a blocked call return at once.
var past = time.Unix(1, 0)

// Listen opens a listener on the abstract socket with that name. For the empty name the kernel
// chooses one, which Addr returns. ctx bounds the call, not the listener. If ctx has ended before
// the call, Listen returns the error of ctx. The error is an *AddrError if the name is invalid, and
// otherwise a *ListenError. Each client has ten seconds for its handshake. If the handshake fails,
// Accept returns a connection whose reads and writes return a *HandshakeError.
func (t *Transport) Listen(ctx context.Context, name string) (transport.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := viable(); err != nil {
		return nil, &ListenError{Addr: name, Err: err}
	}
	l, err := net.ListenUnix("unix", socketAddr(name))
	if err != nil {
		return nil, &ListenError{Addr: name, Err: err}
	}
	if name == "" {
		name = strings.TrimPrefix(l.Addr().String(), "@")
	}
	return newListener(t, l, name), nil
}

// socketAddr returns the address of the abstract socket with that name, for dialling or listening.
// For the empty name it returns an address for which the kernel chooses a name.
func socketAddr(name string) *net.UnixAddr {
	if name == "" {
		return &net.UnixAddr{Net: "unix"}
	}
	return &net.UnixAddr{Name: "@" + name, Net: "unix"}
}

type listener struct {
	transport *Transport
	socket    *net.UnixListener
	name      string

	slots      chan struct{}       // limits to backlog
	queue      chan transport.Conn // never full
	failed     chan error
	done       chan struct{} // closed by Close
	stopping   sync.Once     // runs what Close does
	goroutines sync.WaitGroup
	queueMu    sync.Mutex // serializes sending of greetings and queueing

	spare spareDescriptor

	closing         context.Context
	abortHandshakes context.CancelFunc // cancels closing
}

func newListener(t *Transport, socket *net.UnixListener, name string) *listener {
	l := &listener{
		transport: t, socket: socket, name: name,
		slots:  make(chan struct{}, backlog),
		queue:  make(chan transport.Conn, backlog),
		failed: make(chan error),
		done:   make(chan struct{}),
	}
	l.closing, l.abortHandshakes = context.WithCancel(context.Background())
	l.spare.hold() // its descriptor may have been used for this connection
	l.goroutines.Go(l.acceptLoop)
	return l
}

// acceptLoop is the goroutine of a listener that accepts connections from the kernel and starts
// their handshakes, each on a goroutine of its own, until the listener is closed. It pauses while
// backlog connections wait for their handshake or for Accept. Accept returns the errors of
// accepting.
func (l *listener) acceptLoop() {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.done:
			return
		}
		socket, ended, err := l.accept()
		failpoint.Here()
		switch {
		case ended != nil:
			l.queue <- ended
			continue
		case err == nil:
			l.goroutines.Go(func() { l.handshake(socket) })
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

// handshake performs the server's handshake on socket, which it owns, and queues the connection for
// Accept. If the handshake fails, it closes the socket and queues a failedConn; if h.accept fails,
// it also sends the client the reason where it can. Clients that dial one after the other are
// accepted in that order, because greetings are sent under queueMu. Their memory is created before,
// concurrently.
func (l *listener) handshake(socket *net.UnixConn) {
	socket.SetDeadline(time.Now().Add(l.transport.handshakeTimeout)) // before the interrupt, whose deadline must stay
	interrupt := context.AfterFunc(l.closing, func() { socket.SetDeadline(past) })
	h := newHandshake(l.transport, socket)
	err := h.accept()
	if err != nil {
		h.reject(err)
	}
	l.queueMu.Lock()
	defer l.queueMu.Unlock()
	if err == nil {
		err = h.sendGreeting()
	}
	if !interrupt() && err == nil {
		err = transport.ErrClosed
	}
	peer := processName(h.peer.PID)
	if err == nil {
		h.socket.SetDeadline(time.Time{})
		var c *conn
		if c, err = newConn(h, l.name, peer); err == nil {
			l.queue <- c
			return
		}
	}
	h.abort()
	l.spare.hold() // which its descriptors may have been taken from
	l.queue <- &failedConn{local: l.name, remote: peer, err: &HandshakeError{Peer: peer, Err: err}}
}

func (l *listener) Accept(ctx context.Context) (transport.Conn, error) {
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

func (l *listener) Addr() string { return l.name }

// Close implements transport.Listener. It ends handshakes in progress, waits for the goroutines of
// the listener, closes connections that were not accepted, and returns nil. Blocked calls of Accept
// return ErrClosed.
func (l *listener) Close() error {
	l.stopping.Do(func() {
		close(l.done)
		l.spare.wake()
		l.socket.Close()
		l.abortHandshakes()
		l.goroutines.Wait()
		l.spare.release()
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

// failedConn is a connection whose handshake failed. Its reads and writes return err, or ErrClosed
// after Close. CloseWrite and Close return nil.
type failedConn struct {
	local, remote string
	err           error
	closed        atomic.Bool
}

func (r *failedConn) fault() error {
	if r.closed.Load() {
		return transport.ErrClosed
	}
	return r.err
}

func (r *failedConn) WriteFrames(...transport.Frame) error { return r.fault() }
func (r *failedConn) NextFrame() (int64, error)            { return 0, r.fault() }
func (r *failedConn) ReadBody(...[]byte) error             { return r.fault() }
func (r *failedConn) CloseWrite() error                    { return nil }
func (r *failedConn) LocalAddr() string                    { return r.local }
func (r *failedConn) RemoteAddr() string                   { return r.remote }

func (r *failedConn) Close() error {
	r.closed.Store(true)
	return nil
}
