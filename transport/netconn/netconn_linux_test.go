package netconn_test

import (
	"context"
	"net"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/netconn"
	"github.com/tensorpipe-go/tensorpipe/transport/transporttest"
)

// unixTransport is a transport over Unix sockets.
type unixTransport struct{}

func (unixTransport) Viable() error                     { return nil }
func (unixTransport) DomainDescriptor() string          { return "unix:test" }
func (unixTransport) CanCommunicate(remote string) bool { return remote == "unix:test" }

func (unixTransport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "unix", addr)
	if err != nil {
		return nil, err
	}
	return netconn.NewListener(l, func(c net.Conn) transport.Conn { return netconn.New(c.(*net.UnixConn)) }), nil
}

func (unixTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", addr)
	if err != nil {
		return nil, err
	}
	return netconn.New(c.(*net.UnixConn)), nil
}

// TestUnixConformance checks that a transport over Unix sockets, which differ from those of TCP in
// how they end, keeps the contract. The kernel chooses the names of the listeners.
func TestUnixConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Backend{
		Name: "unix",
		New:  func(*testing.T) transport.Transport { return unixTransport{} },
		Addr: "",
	})
}
