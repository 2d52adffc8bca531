package pipe_test

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// TestBulkWithoutConnection checks that if the bulk connection cannot be opened, because the
// listener is closed or other connections have taken its slot, large tensors arrive in both
// directions all the same, over a stream of the session.
func TestBulkWithoutConnection(t *testing.T) {
	t.Run("the listener is closed", func(t *testing.T) {
		for _, p := range pathsOf(pipe.DialectNative) {
			t.Run(p.name, func(t *testing.T) {
				a, b := newContext(t, p), newContext(t, p)
				l, client, server := connectAndKeep(t, a, b, p.url)
				require.NoError(t, l.Close())
				largeBothWays(t, client, server)
			})
		}
	})

	// The flood also takes the slot that is reserved for the pipe's own connection.
	t.Run("strangers have taken its slot", func(t *testing.T) {
		p := pathNamed("uv+basic+native")
		var log bytes.Buffer
		a := newContext(t, p, func(o *pipe.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		b := newContext(t, p, func(o *pipe.Options) { o.Limits.MaxHandshakesInProgress = 2 })
		l, client, server := connectAndKeep(t, a, b, p.url)
		flood(t, l, b)
		largeBothWays(t, client, server)
		require.NoError(t, a.Close())
		require.Contains(t, log.String(), "bulk data goes through the session")
	})
}

// TestBulkConfirmedTooLate checks that if the server confirms the bulk connection only after the
// client's handshake timeout, large tensors still arrive in both directions, at once and an hour
// later, and both ends close without an error.
func TestBulkConfirmedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := simnet.New(mem.New(mem.NewNetwork()), simnet.OnLink(1, simnet.Delay(2*time.Second)))
		p := nativePath()
		slow := func(o *pipe.Options) {
			o.Transports[0].Transport = network
			o.HandshakeTimeout = time.Second
		}
		client, server := connect(t, p, slow)
		largeBothWays(t, client, server)
		<-time.NewTimer(time.Hour).C // until all delayed frames have arrived
		largeBothWays(t, client, server)
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	})
}

// flood opens TCP connections to l that send nothing, until the context b has refused one. They are
// closed at the end of the test.
func flood(t *testing.T, l *pipe.Listener, b *pipe.Context) {
	t.Helper()
	for b.Stats().ConnectionsRefused == 0 {
		c, err := net.Dial("tcp", strings.TrimPrefix(l.URLs()[0], "uv://"))
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
	}
}

func largeBothWays(t *testing.T, client, server *pipe.Pipe) {
	t.Helper()
	for range 3 {
		exchange(t, client, server, message(70, []int{1 << 20}, []int{3 << 20, 100_000}))
	}
}
