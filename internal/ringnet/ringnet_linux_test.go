package ringnet_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// sockets returns the two ends of a Unix socket.
func sockets(t testing.TB) (one, other *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		unix.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

func addresses() ringnet.Addresses {
	a := &net.UnixAddr{Name: "test", Net: "unix"}
	return ringnet.Addresses{Local: a, Remote: a}
}

// now is a channel that is closed.
func now() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func sessions(t testing.TB, streams int) (client, server *ringnet.Session) {
	t.Helper()
	cfg := transport.SessionConfig{Streams: streams}
	return sessionsOf(t, cfg, cfg)
}

func sessionsOf(t testing.TB, clients, servers transport.SessionConfig) (client, server *ringnet.Session) {
	t.Helper()
	a, b := sockets(t)
	server, err := ringnet.NewSession(b, now(), servers, wait.Spin, addresses())
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	clients.Client = true
	client, err = ringnet.NewSession(a, now(), clients, wait.Spin, addresses())
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return client, server
}

// open opens n streams.
func open(t testing.TB, from, to transport.Session) (opened, accepted transport.Stream) {
	t.Helper()
	opened, err := from.Open()
	require.NoError(t, err)
	accepted, err = to.Accept(t.Context())
	require.NoError(t, err)
	return opened, accepted
}

func TestStreamIsNetConn(t *testing.T) {
	for i, name := range []string{"first", "second", "third"} {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				client, server := sessions(t, 5)
				for range i {
					open(t, client, server)
				}
				opened, accepted := open(t, client, server)
				return opened, accepted, func() { client.Close(); server.Close() }, nil
			})
		})
	}
}

func random(size int) []byte {
	p := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(p)
	return p
}

func TestManyBytesBothWays(t *testing.T) {
	client, server := sessions(t, 1)
	one, other := open(t, client, server)
	want := random(20<<20 + 7)
	var sent []<-chan error
	for _, s := range []transport.Stream{one, other} {
		sent = append(sent, patience.Start(func() error {
			if _, err := s.(transport.Gatherer).WriteBuffers(&net.Buffers{want[:100], nil, want[100:]}); err != nil {
				return err
			}
			return s.CloseWrite()
		}))
	}
	for _, s := range []transport.Stream{one, other} {
		got, err := io.ReadAll(s)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
	}
	for _, done := range sent {
		require.NoError(t, patience.Finish(t, done))
	}
}

// Places are used again when both ends have closed their streams.
func TestPlacesAreUsedAgain(t *testing.T) {
	client, server := sessions(t, 3)
	ctx := context.Background()
	for _, way := range [][2]transport.Session{{client, server}, {server, client}} {
		for range 100 {
			opened, err := way[0].Open()
			require.NoError(t, err)
			_, err = opened.Write([]byte("x"))
			require.NoError(t, err)
			accepted, err := way[1].Accept(ctx)
			require.NoError(t, err)
			_, err = io.ReadFull(accepted, make([]byte, 1))
			require.NoError(t, err)
			require.NoError(t, accepted.Close())
			require.NoError(t, opened.Close())
		}
	}
}
