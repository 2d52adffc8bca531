package shm

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// backlog bounds the connections whose handshake is under way or that nobody has
// accepted; more wait in the kernel.
const backlog = 128

// past is a deadline that ends a blocked call at once.
var past = time.Unix(1, 0)

// Listen opens a listener on the abstract socket with that name. It gives every
// peer ten seconds for the handshake. Peers that fail it come out of Accept as
// connections whose calls say why.
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

// socketAddr leaves the choice of a name to the kernel where there is none.
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

	places chan struct{}       // backlog
	queue  chan transport.Conn // never full
	failed chan error
	done   chan struct{} // closed by Close
	stop   func()
	run    sync.WaitGroup
	inLine sync.Mutex // for the queue

	reserve reserve

	closing context.Context
	hangUp  context.CancelFunc // on handshakes under way
}

func newListener(t *Transport, socket *net.UnixListener, name string) *listener {
	l := &listener{
		transport: t, socket: socket, name: name,
		places: make(chan struct{}, backlog),
		queue:  make(chan transport.Conn, backlog),
		failed: make(chan error),
		done:   make(chan struct{}),
	}
	l.closing, l.hangUp = context.WithCancel(context.Background())
	l.stop = sync.OnceFunc(l.end)
	l.reserve.hold()
	l.run.Go(l.welcome)
	return l
}

// welcome takes connections from the kernel.
func (l *listener) welcome() {
	for {
		select {
		case l.places <- struct{}{}:
		case <-l.done:
			return
		}
		socket, ended, err := l.accept()
		step.Here()
		switch {
		case ended != nil:
			l.queue <- ended
			continue
		case err == nil:
			l.run.Go(func() { l.receive(socket) })
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

// receive does this end's part of a handshake. A peer that it turns away is
// queued too. Whoever dials one after the other is accepted in that order,
// because the last word of a handshake is said in it; the memory was made before,
// by all at once.
func (l *listener) receive(socket *net.UnixConn) {
	socket.SetDeadline(time.Now().Add(l.transport.patience)) // first: that of a Close lasts
	interrupt := context.AfterFunc(l.closing, func() { socket.SetDeadline(past) })
	h := newHandshake(l.transport, socket)
	err := h.meet()
	if err != nil {
		h.turnAway(err)
	}
	l.inLine.Lock()
	defer l.inLine.Unlock()
	if err == nil {
		err = h.greet()
	}
	if !interrupt() && err == nil {
		err = transport.ErrClosed
	}
	l.queue <- l.outcome(h, err)
}

func (l *listener) outcome(h *handshake, err error) transport.Conn {
	peer := processName(h.peer.PID)
	if err == nil {
		h.socket.SetDeadline(time.Time{})
		var c *conn
		if c, err = newConn(h, l.name, peer); err == nil {
			return c
		}
	}
	h.undo()
	l.reserve.hold() // which its descriptors may have been taken from
	return &refused{local: l.name, remote: peer, err: &HandshakeError{Peer: peer, Err: err}}
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

func (l *listener) Addr() string { return l.name }

func (l *listener) Close() error {
	l.stop()
	return nil
}

// end closes what nobody accepted.
func (l *listener) end() {
	close(l.done)
	l.reserve.wake()
	l.socket.Close()
	l.hangUp()
	l.run.Wait()
	l.reserve.release()
	for {
		select {
		case c := <-l.queue:
			c.Close()
		default:
			return
		}
	}
}
