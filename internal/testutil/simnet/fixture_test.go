package simnet_test

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// sameAddresses gives all connections the same two addresses, as a system that reuses ports.
type sameAddresses struct{ transport.Transport }

func (s sameAddresses) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := s.Transport.Dial(ctx, addr)
	return fixed{c, "d", "a"}, err
}

func (s sameAddresses) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := s.Transport.Listen(ctx, addr)
	return sameListener{l}, err
}

func (s sameAddresses) Advertise(addr string, c transport.Conn) string {
	return addr + " for " + c.RemoteAddr()
}

func (s sameAddresses) AdvertiseAt(addr, local string) (string, bool) {
	return addr + " at " + local, true
}

func (s sameAddresses) Reach(addr string, c transport.Conn) string {
	return addr + " from " + c.RemoteAddr()
}

type sameListener struct{ transport.Listener }

func (l sameListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	return fixed{c, "a", "d"}, err
}

type fixed struct {
	transport.Conn
	local, remote string
}

func (f fixed) LocalAddr() string  { return f.local }
func (f fixed) RemoteAddr() string { return f.remote }
