package mem

import (
	"context"
	"sync"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// backlog is the number of connections that wait for Accept before Dial blocks.
const backlog = 128

type listener struct {
	addr      string
	queue     chan *conn
	done      chan struct{} // closed by Close
	closeOnce func()
}

// newListener returns an open listener with the name addr. It does not add the listener to
// n.listeners: the caller does. Close of the listener removes it from n.listeners and closes the
// connections that were not accepted.
func newListener(n *Network, addr string) *listener {
	l := &listener{
		addr:  addr,
		queue: make(chan *conn, backlog),
		done:  make(chan struct{}),
	}
	l.closeOnce = sync.OnceFunc(func() {
		n.mu.Lock()
		delete(n.listeners, addr)
		n.mu.Unlock()
		close(l.done)
		l.drain()
	})
	return l
}

// Accept blocks until a connection is queued and returns it; the caller owns it. The error is that
// of ctx once ctx has ended, or ErrClosed after Close. A call whose ctx has ended before accepts
// nothing, even if a connection is queued.
func (l *listener) Accept(ctx context.Context) (transport.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, transport.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *listener) Addr() string { return l.addr }

func (l *listener) Close() error {
	l.closeOnce()
	return nil
}

// enqueue queues c for Accept, and blocks while the queue is full. If it returns nil the listener
// owns c; if the listener is closed at the same time, c may be closed already. The error is
// ECONNREFUSED if the listener is closed, or that of ctx; the caller then still owns c.
func (l *listener) enqueue(ctx context.Context, c *conn) error {
	select {
	case l.queue <- c:
	case <-l.done:
		return syscall.ECONNREFUSED
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-l.done:
		l.drain() // Close may have drained the queue just before c was added
	default:
	}
	return nil
}

// drain empties the queue of l and closes the connections in it, which were not accepted. It does
// not block. It is called after l.done is closed.
func (l *listener) drain() {
	for {
		select {
		case c := <-l.queue:
			c.Close()
		default:
			return
		}
	}
}
