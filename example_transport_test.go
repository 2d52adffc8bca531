package tensorpipe_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/netconn"
)

// unixTransport is a transport over Unix sockets. An address is the path of a socket.
type unixTransport struct{}

func (unixTransport) Viable() error                     { return nil }
func (unixTransport) DomainDescriptor() string          { return "unix:this machine" }
func (unixTransport) CanCommunicate(remote string) bool { return remote == "unix:this machine" }

// IsLocal declares that other machines cannot reach a listener, so that agents require no token.
func (unixTransport) IsLocal(string) bool { return true }

func (unixTransport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "unix", addr)
	if err != nil {
		return nil, err
	}
	return netconn.NewListener(l, newUnixConn), nil
}

func (unixTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", addr)
	if err != nil {
		return nil, err
	}
	return newUnixConn(c), nil
}

// newUnixConn returns the connection of the transport over c, with frames, sessions and streams.
func newUnixConn(c net.Conn) transport.Conn { return netconn.New(c.(*net.UnixConn)) }

// A transport of an application's own needs Listen and Dial; package netconn does the rest.
func ExampleProfile_NewContext_ownTransport() {
	profile := tensorpipe.DefaultProfile()
	profile.Transports = append(profile.Transports, pipe.TransportEntry{Name: "unix", Priority: 100, Transport: unixTransport{}})
	c, err := profile.NewContext(pipe.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	dir, err := os.MkdirTemp("", "tensorpipe")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := c.Listen(context.Background(), "unix://"+filepath.Join(dir, "socket"), "uv://127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	for _, url := range l.URLs() { // whichever is dialled, the pipe uses the best transport
		p, err := c.Dial(context.Background(), url)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(p.Plan().Transport, p.Plan().Dialect)
	}
	// Output:
	// unix native
	// unix native
}
