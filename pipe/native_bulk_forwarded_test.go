package pipe_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestBulkThroughForwardedPort checks that the bulk connection of a client that has dialled a
// forwarded port goes through that port, like the first connection. If the port leads to another
// server, as that of a load balancer may, the client uses the address that its server advertises.
func TestBulkThroughForwardedPort(t *testing.T) {
	for name, c := range map[string]struct {
		balanced bool
		refused  uint64 // connections at the other server
	}{"to the server": {false, 0}, "to another server": {true, 1}} {
		t.Run(name, func(t *testing.T) {
			p := pathNamed("uv+basic+native")
			targets := make(chan string, 2)
			url := forward(t, targets)
			var log bytes.Buffer
			a := newContext(t, p, func(o *pipe.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			b, other := newContext(t, p), newContext(t, p)
			l, err := b.Listen(t.Context(), p.url)
			require.NoError(t, err)
			elsewhere, err := other.Listen(t.Context(), p.url)
			require.NoError(t, err)
			targets <- l.URLs()[0]
			if c.balanced {
				targets <- elsewhere.URLs()[0]
			} else {
				targets <- l.URLs()[0]
			}
			close(targets)
			client, err := a.Dial(t.Context(), url)
			require.NoError(t, err)
			server, err := l.Accept(testContext(t))
			require.NoError(t, err)
			largeBothWays(t, client, server)
			require.Empty(t, targets, "the bulk connection was forwarded too")
			require.Equal(t, c.refused, other.Stats().HandshakesFailed)
			closed := testwait.Start(server.Close)
			require.NoError(t, client.Close())
			require.NoError(t, testwait.Finish(t, closed))
			require.NoError(t, a.Close())
			require.NotContains(t, log.String(), "bulk data goes through the session")
		})
	}
}

// forward listens at a port of this machine until the end of the test, and returns the url of the
// port. It forwards each connection to the address in the next url of targets, and closes it if
// there is none. Contexts must be created after the call, so that they end before it.
func forward(t *testing.T, targets <-chan string) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var work sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		work.Wait()
	})
	work.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", strings.TrimPrefix(<-targets, "uv://"))
			if err != nil {
				near.Close()
				continue
			}
			work.Go(func() {
				defer near.Close()
				defer far.Close()
				var directions sync.WaitGroup
				directions.Go(func() { copyBytes(far, near) })
				directions.Go(func() { copyBytes(near, far) })
				directions.Wait()
			})
		}
	})
	return "uv://" + l.Addr().String()
}

// copyBytes copies bytes from one connection to the other until either ends, and ends the other's
// writing half.
func copyBytes(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.(*net.TCPConn).CloseWrite()
}
