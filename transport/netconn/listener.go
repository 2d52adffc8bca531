package netconn

import (
	"context"
	"net"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// listener implements transport.Listener on a net.Listener. A goroutine accepts connections, because
// the Accept of a net.Listener has no context.
type listener struct {
	net.Listener
	newConn  func(net.Conn) transport.Conn
	accepted chan acceptResult
	closed   chan struct{} // closed by Close
	closing  sync.Once
	loop     sync.WaitGroup
}

// acceptResult is the result of one call of the net.Listener's Accept.
type acceptResult struct {
	conn net.Conn
	err  error
}

// NewListener returns a [transport.Listener] over l, which it owns and closes. Its Accept passes
// the connection that it takes to newConn and returns the result; newConn owns the connection and
// must not block. An error of l's Accept is returned by one call, and later calls may succeed. At
// most one connection is accepted ahead of a call; if no call takes it, Close closes it.
func NewListener(l net.Listener, newConn func(net.Conn) transport.Conn) transport.Listener {
	out := &listener{Listener: l, newConn: newConn, accepted: make(chan acceptResult), closed: make(chan struct{})}
	out.loop.Go(out.run)
	return out
}

// run passes the results of the net.Listener's Accept to callers of Accept, until Close.
func (l *listener) run() {
	for {
		conn, err := l.Listener.Accept()
		select {
		case l.accepted <- acceptResult{conn, err}:
		case <-l.closed:
			if err == nil {
				conn.Close()
			}
			return
		}
	}
}

// Accept implements [transport.Listener]. The error is that of ctx, ErrClosed after Close, or that of
// the net.Listener.
func (l *listener) Accept(ctx context.Context) (transport.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case <-l.closed:
		return nil, transport.ErrClosed
	default:
	}
	select {
	case r := <-l.accepted:
		if r.err != nil {
			return nil, r.err
		}
		return l.newConn(r.conn), nil
	case <-l.closed:
		return nil, transport.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *listener) Addr() string { return l.Listener.Addr().String() }

// Close implements [transport.Listener]. The error is that of the net.Listener at the first call,
// and nil later.
func (l *listener) Close() (err error) {
	l.closing.Do(func() {
		close(l.closed)
		err = l.Listener.Close()
	})
	l.loop.Wait()
	return err
}
