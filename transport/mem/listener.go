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

// newListener returns a listener with the name addr. The caller adds it to n; Close of the listener
// removes it from there.
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

// Accept implements transport.Listener. It checks ctx first, so that a call with an ended ctx
// accepts nothing: select would choose at random.
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

// enqueue queues c for Accept, and blocks while the queue is full. The listener owns c then. The
// error is ECONNREFUSED if the listener is closed, or that of ctx; after an error the caller keeps
// c.
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

// drain closes the queued connections, which were not accepted. It is called after done is closed.
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
