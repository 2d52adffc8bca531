package mux_test

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(peerVariable); order != "" {
		play(order)
		return
	}
	leakcheck.Main(m)
}

// socket is a TCP connection that is not written without blocking.
type socket struct{ *net.TCPConn }

func (socket) TryWrite(...[]byte) (int, error) { return 0, nil }

// tcp returns the two ends of a new TCP connection, which are closed when the test ends.
func tcp(t testing.TB) (dialled, accepted socket) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	d, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	a, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { d.Close(); a.Close() })
	return socket{d.(*net.TCPConn)}, socket{a.(*net.TCPConn)}
}

// sessions returns the two ends of a new session over TCP, both with the configuration cfg, which
// are closed when the test ends.
func sessions(t testing.TB, cfg transport.SessionConfig) (client, server transport.Session) {
	t.Helper()
	d, a := tcp(t)
	server, err := mux.New(a, cfg)
	require.NoError(t, err)
	cfg.Client = true
	client, err = mux.New(d, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// streams opens a stream at from and returns its two ends, the second one as accepted by to.
func streams(t testing.TB, from, to transport.Session) (opened, accepted transport.Stream) {
	t.Helper()
	opened, err := from.Open()
	require.NoError(t, err)
	accepted, err = to.Accept(t.Context())
	require.NoError(t, err)
	return opened, accepted
}

func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		client, server := sessions(t, transport.SessionConfig{MaxStreams: 4})
		o, a := streams(t, client, server)
		return o, a, func() { client.Close(); server.Close() }, nil
	})
}
