package transporttest

import (
	"context"
	"io"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// withTimeout returns a copy of b for the test t. If t is not over after b.Timeout, or a minute if
// that is 0, t fails. Then all listeners and connections that were opened through the copy are
// closed, and blocked calls of Listen, Dial and Accept end.
func (b Backend) withTimeout(t *testing.T) Backend {
	watchdog := testwait.Watch(t, b.Timeout)
	open, dialRaw := b.New, b.DialRaw
	b.New = func(t *testing.T) transport.Transport { return boundedTransport{open(t), watchdog} }
	if dialRaw == nil {
		return b
	}
	b.DialRaw = func(addr string) (io.WriteCloser, error) {
		w, err := dialRaw(addr)
		if err == nil {
			watchdog.CloseOnTimeout(w)
		}
		return w, err
	}
	return b
}

// boundedTransport ends its blocked calls, and closes its listeners and connections, when the test
// exceeds its limit.
type boundedTransport struct {
	transport.Transport
	watchdog *testwait.Watchdog
}

func (w boundedTransport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	ctx, free := w.watchdog.Context(ctx)
	defer free()
	l, err := w.Transport.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	w.watchdog.CloseOnTimeout(l)
	return boundedListener{l, w.watchdog}, nil
}

func (w boundedTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	ctx, free := w.watchdog.Context(ctx)
	defer free()
	return closeLate(w.watchdog)(w.Transport.Dial(ctx, addr))
}

type boundedListener struct {
	transport.Listener
	watchdog *testwait.Watchdog
}

func (l boundedListener) Accept(ctx context.Context) (transport.Conn, error) {
	ctx, free := l.watchdog.Context(ctx)
	defer free()
	return closeLate(l.watchdog)(l.Listener.Accept(ctx))
}

// closeLate returns a function that takes the results of Dial or Accept and returns them unchanged.
// If the error is nil, watchdog will close the connection when the test exceeds its limit.
func closeLate(watchdog *testwait.Watchdog) func(transport.Conn, error) (transport.Conn, error) {
	return func(c transport.Conn, err error) (transport.Conn, error) {
		if err == nil {
			watchdog.CloseOnTimeout(c)
		}
		return c, err
	}
}
