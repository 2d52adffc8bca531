package pipe

import (
	"io"
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// connPair returns two contexts over one transport, of which the second one has these limits, and
// which are closed when the test ends.
func connPair(t *testing.T, over transport.Transport, limits Limits) (client, server *Context) {
	t.Helper()
	open := func(o Options) *Context {
		o.Transports = []TransportEntry{{Name: "x", Transport: over}}
		c, err := New(o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c
	}
	return open(Options{}), open(Options{Limits: limits})
}

// TestDialConnToOtherPeers checks that DialConn fails with ErrDialect at a server that does not know
// Conns, such as a C++ process, and opens nothing.
func TestDialConnToOtherPeers(t *testing.T) {
	leakcheck.Check(t)
	client, server := connPair(t, mem.New(mem.NewNetwork()), Limits{})
	server.hideMarker = true
	l, err := server.Listen(t.Context(), "x://")
	require.NoError(t, err)
	_, err = client.DialConn(t.Context(), l.URLs()[0])
	require.ErrorIs(t, err, ErrDialect)
	require.ErrorContains(t, err, "the peer opens pipes only")
	require.Zero(t, client.Stats().ConnSessionsOpen)
}

// TestTooManyConns checks that a client that ignores the number in the answer gets no
// more Conns than that: further ones are reset, and the others work.
func TestTooManyConns(t *testing.T) {
	for name, over := range map[string]transport.Transport{"mem": mem.New(mem.NewNetwork()), "shm": shm.New()} {
		t.Run(name, func(t *testing.T) {
			if err := over.Viable(); err != nil {
				t.Skip(err)
			}
			leakcheck.Check(t)
			const limit = 4
			client, server := connPair(t, over, Limits{MaxConns: limit})
			l, err := server.ListenConn(t.Context(), "x://")
			require.NoError(t, err)
			s, _, err := client.sessionTo(t.Context(), l.Addr().String())
			require.NoError(t, err)
			require.Equal(t, limit, s.maxConns)
			s.maxConns = math.MaxInt
			var conns []*Conn
			for range 3 * limit {
				conn, err := s.openConn(t.Context())
				require.NoError(t, err)
				defer conn.Close()
				conns = append(conns, conn)
			}
			for _, conn := range conns[:limit] {
				accepted, err := l.Accept()
				require.NoError(t, err)
				defer accepted.Close()
				_, err = conn.Write([]byte("x"))
				require.NoError(t, err)
				_, err = io.ReadFull(accepted, make([]byte, 1))
				require.NoError(t, err)
			}
			for _, conn := range conns[limit:] {
				_, err := conn.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
			}
			require.Equal(t, limit, server.Stats().ConnsOpen)
		})
	}
}
