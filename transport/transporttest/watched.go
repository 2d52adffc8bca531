package transporttest

import (
	"context"
	"io"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// watched returns b for the one test t: when the test takes longer than
// b.Patience, it fails, and all that it opened through b is closed.
func (b Backend) watched(t *testing.T) Backend {
	dog := patience.Watch(t, b.Patience)
	open, dialRaw := b.New, b.DialRaw
	b.New = func(t *testing.T) transport.Transport { return watched{open(t), dog} }
	if dialRaw == nil {
		return b
	}
	b.DialRaw = func(addr string) (io.WriteCloser, error) {
		w, err := dialRaw(addr)
		if err == nil {
			dog.Guard(w)
		}
		return w, err
	}
	return b
}

// watched is a transport whose calls end, and whose listeners and connections
// are closed, when the test is late.
type watched struct {
	transport.Transport
	dog *patience.Watchdog
}

func (w watched) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	ctx, free := w.dog.Bound(ctx)
	defer free()
	l, err := w.Transport.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	w.dog.Guard(l)
	return watchedListener{l, w.dog}, nil
}

func (w watched) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	ctx, free := w.dog.Bound(ctx)
	defer free()
	return guard(w.dog)(w.Transport.Dial(ctx, addr))
}

type watchedListener struct {
	transport.Listener
	dog *patience.Watchdog
}

func (l watchedListener) Accept(ctx context.Context) (transport.Conn, error) {
	ctx, free := l.dog.Bound(ctx)
	defer free()
	return guard(l.dog)(l.Listener.Accept(ctx))
}

// guard puts a new connection under the eyes of dog.
func guard(dog *patience.Watchdog) func(transport.Conn, error) (transport.Conn, error) {
	return func(c transport.Conn, err error) (transport.Conn, error) {
		if err == nil {
			dog.Guard(c)
		}
		return c, err
	}
}
