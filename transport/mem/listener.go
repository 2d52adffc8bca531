package mem

import (
	"context"
	"sync"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// backlog is the number of connections that wait for Accept before Dial waits
// too.
const backlog = 128

type listener struct {
	network *Network
	addr    string
	queue   chan *conn
	done    chan struct{} // closed by Close
	close   func()
}

func newListener(n *Network, addr string) *listener {
	l := &listener{
		network: n,
		addr:    addr,
		queue:   make(chan *conn, backlog),
		done:    make(chan struct{}),
	}
	l.close = sync.OnceFunc(l.shut)
	return l
}

// Accept asks ctx first, as select would choose at random between it and a
// connection that waits.
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
	l.close()
	return nil
}

// offer puts c in line for Accept.
func (l *listener) offer(ctx context.Context, c *conn) error {
	select {
	case l.queue <- c:
	case <-l.done:
		return syscall.ECONNREFUSED
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-l.done:
		l.drain() // Close may have done so just before c went in
	default:
	}
	return nil
}

func (l *listener) shut() {
	l.network.forget(l)
	close(l.done)
	l.drain()
}

// drain closes the connections that nobody accepted.
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
