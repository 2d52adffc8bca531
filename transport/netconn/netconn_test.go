package netconn_test

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/thirdparty"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/netconn"
	"github.com/tensorpipe-go/tensorpipe/transport/transporttest"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// xored is a connection that changes all bytes, as one that encrypts them does. It embeds the
// socket, so that its methods that write in other ways than Write are those of the socket.
type xored struct{ *net.TCPConn }

func (x xored) Read(p []byte) (int, error) {
	n, err := x.TCPConn.Read(p)
	flip(p[:n])
	return n, err
}

func (x xored) Write(p []byte) (int, error) {
	q := append([]byte(nil), p...)
	flip(q)
	return x.TCPConn.Write(q)
}

func flip(p []byte) {
	for i := range p {
		p[i] ^= 0x55
	}
}

// TestConformance checks that a transport whose connections are those of New keeps the contract.
func TestConformance(t *testing.T) {
	newConn := func(c net.Conn) transport.Conn { return netconn.New(c.(*net.TCPConn)) }
	transporttest.Run(t, transporttest.Backend{
		Name:         "netconn",
		New:          func(*testing.T) transport.Transport { return thirdparty.Transport{NewConn: newConn} },
		Addr:         "127.0.0.1:0",
		DialRaw:      thirdparty.DialRaw,
		AppendHeader: func(dst []byte, size int) []byte { return frame.AppendHeader(dst, int64(size)) },
	})
}

// TestWrappedWrites checks that no byte bypasses the Write of a connection that embeds a socket.
func TestWrappedWrites(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer dialled.Close()
	accepted, err := l.Accept()
	require.NoError(t, err)
	defer accepted.Close()
	c, peer := netconn.New(xored{dialled.(*net.TCPConn)}), netconn.New(xored{accepted.(*net.TCPConn)})
	large := make([]byte, 10<<10)
	require.NoError(t, c.WriteFrames(transport.Frame{large[:1], large[1:]})) // several buffers
	n, err := peer.NextFrame()
	require.NoError(t, err)
	require.EqualValues(t, len(large), n)
	got := make([]byte, n)
	require.NoError(t, peer.ReadBody(got))
	require.Equal(t, large, got)
	s, err := c.Stream()
	require.NoError(t, err)
	require.NotImplements(t, (*transport.Gatherer)(nil), s)
	sent, err := s.TryWrite(large)
	require.NoError(t, err)
	require.Zero(t, sent)
}

// TestSessionOverAnyConn checks that the streams of a session over net.Pipe, whose halves cannot be
// closed separately, are complete net.Conns.
func TestSessionOverAnyConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		a, b := net.Pipe()
		client, err := netconn.NewSession(a, transport.SessionConfig{Client: true, MaxStreams: 1})
		require.NoError(t, err)
		server, err := netconn.NewSession(b, transport.SessionConfig{MaxStreams: 1})
		require.NoError(t, err)
		opened, err := client.Open()
		require.NoError(t, err)
		accepted, err := server.Accept(t.Context())
		require.NoError(t, err)
		return opened, accepted, func() { client.Close(); server.Close() }, nil
	})
}

// TestSessionEnds checks that a session over net.Pipe ends with ErrClosed at the end that closes it,
// and with an error at the other one.
func TestSessionEnds(t *testing.T) {
	a, b := net.Pipe()
	client, err := netconn.NewSession(a, transport.SessionConfig{Client: true, MaxStreams: 1})
	require.NoError(t, err)
	server, err := netconn.NewSession(b, transport.SessionConfig{MaxStreams: 1})
	require.NoError(t, err)
	require.NoError(t, client.Close())
	require.ErrorIs(t, client.Err(), transport.ErrClosed)
	<-server.Done()
	require.Error(t, server.Err())
	require.NotErrorIs(t, server.Err(), transport.ErrClosed)
	require.NoError(t, server.Close())
	_, err = netconn.NewSession(a, transport.SessionConfig{MaxStreams: -1})
	require.Error(t, err)
}

// TestListenerError checks that an error of the net.Listener is returned by one call of Accept, after
// which the listener goes on, and that Close closes a connection that was accepted ahead.
func TestListenerError(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	failing := &failsOnce{Listener: inner}
	l := netconn.NewListener(failing, func(c net.Conn) transport.Conn { return netconn.New(c.(*net.TCPConn)) })
	defer l.Close()
	_, err = l.Accept(t.Context())
	require.ErrorIs(t, err, syscall.EMFILE)
	for range 2 {
		c, err := net.Dial("tcp", l.Addr())
		require.NoError(t, err)
		defer c.Close()
	}
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
}

// failsOnce is a listener whose first Accept fails.
type failsOnce struct {
	net.Listener
	failed bool
}

func (l *failsOnce) Accept() (net.Conn, error) {
	if !l.failed {
		l.failed = true
		return nil, syscall.EMFILE
	}
	return l.Listener.Accept()
}
