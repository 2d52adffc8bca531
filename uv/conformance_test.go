package uv_test

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/transporttest"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestParity(t *testing.T) {
	transporttest.Run(t, backend("uv", "127.0.0.1:0"))
	parity.Case(t, "tensorpipe/transport.UvLargeWrite", largeWrite)
	parity.Case(t, "tensorpipe/transport.UvLookupAddress", lookupAddress)
	parity.Case(t, "tensorpipe/transport.UvSockaddr", func(t *testing.T) {
		t.Run("good", parsesAndPrints)
		t.Run("scope", scopesHaveNames)
		t.Run("bad port", refusesBadPorts)
		t.Run("brackets", refusesMisplacedBrackets)
	})
}

func TestConformanceIPv6(t *testing.T) {
	short.Skip(t, "the conformance suite once more")
	needIPv6(t)
	transporttest.Run(t, backend("uv6", "[::1]:0"))
}

func backend(name, addr string) transporttest.Backend {
	return transporttest.Backend{
		Name:    name,
		New:     func(*testing.T) transport.Transport { return uv.New() },
		Addr:    addr,
		DialRaw: func(addr string) (io.WriteCloser, error) { return net.Dial("tcp", addr) },
		AppendHeader: func(dst []byte, size int) []byte {
			return binary.LittleEndian.AppendUint64(dst, uint64(size))
		},
	}
}

func needIPv6(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 loopback: %v", err)
	}
	require.NoError(t, l.Close())
}

// listen opens a listener of tr on addr, which is closed when the test ends. An error ends the
// test.
func listen(t *testing.T, tr *uv.Transport, addr string) transport.Listener {
	t.Helper()
	l, err := tr.Listen(t.Context(), addr)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// connect dials addr, an address of the listener l, accepts the connection and returns both ends.
// They are closed when the test ends. An error ends the test.
func connect(t testing.TB, tr *uv.Transport, l transport.Listener, addr string) (dialled, accepted transport.Conn) {
	t.Helper()
	dialled, err := tr.Dial(t.Context(), addr)
	require.NoError(t, err)
	t.Cleanup(func() { dialled.Close() })
	accepted, err = l.Accept(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { accepted.Close() })
	return dialled, accepted
}

// loopback returns both ends of a new connection without TLS on the loopback interface. They are
// closed when the test ends.
func loopback(t testing.TB) (dialled, accepted transport.Conn) {
	t.Helper()
	tr := uv.New()
	l, err := tr.Listen(t.Context(), "127.0.0.1")
	require.NoError(t, err)
	defer l.Close()
	return connect(t, tr, l, l.Addr())
}

// raw returns an accepted connection and the TCP socket at its other end, with which a test can
// violate the framing. Both are closed when the test ends.
func raw(t *testing.T) (*net.TCPConn, transport.Conn) {
	t.Helper()
	l := listen(t, uv.New(), "127.0.0.1")
	peer, err := net.Dial("tcp", l.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { peer.Close() })
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return peer.(*net.TCPConn), c
}
