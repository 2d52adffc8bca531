package ringsession_test

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

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ringsession"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/socket"
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

func addresses() ringsession.Addresses {
	a := &net.UnixAddr{Name: "test", Net: "unix"}
	return ringsession.Addresses{Local: a, Remote: a}
}

// ready returns a closed channel, for sessions that may read from their socket at once.
func ready() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func sessions(t testing.TB, streams int) (client, server *ringsession.Session) {
	t.Helper()
	cfg := transport.SessionConfig{MaxStreams: streams}
	return sessionsOf(t, cfg, cfg)
}

func sessionsOf(t testing.TB, clients, servers transport.SessionConfig) (client, server *ringsession.Session) {
	t.Helper()
	usual := wait.Config{Spin: wait.Spin}
	return waitingSessions(t, clients, servers, usual, usual)
}

// waitingSessions returns a session of which the calls of the two ends wait as atClient and atServer determine.
func waitingSessions(t testing.TB, clients, servers transport.SessionConfig, atClient, atServer wait.Config) (client, server *ringsession.Session) {
	t.Helper()
	a, b := sockets(t)
	server, err := ringsession.NewSession(b, ready(), servers, atServer, addresses())
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	clients.Client = true
	client, err = ringsession.NewSession(a, ready(), clients, atClient, addresses())
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return client, server
}

// open opens a stream from one end of a session to the other.
func open(t testing.TB, from, to transport.Session) (opened, accepted transport.Stream) {
	t.Helper()
	opened, err := from.Open()
	require.NoError(t, err)
	accepted, err = to.Accept(t.Context())
	require.NoError(t, err)
	return opened, accepted
}

func TestStreamIsNetConn(t *testing.T) {
	// With three streams every slot of the first segment is used.
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

// A read into an empty slice returns 0 and nil, also if the peer has finished writing: bytes may
// still be in the ring. After Close it returns ErrClosed.
func TestReadOfNothing(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	_, err := out.Write([]byte("last"))
	require.NoError(t, err)
	require.NoError(t, out.CloseWrite())
	for name, read := range map[string]func([]byte) (int, error){
		"Read": in.Read, "TryRead": in.(transport.Poller).TryRead,
	} {
		n, err := read(nil)
		require.NoError(t, err, name)
		require.Zero(t, n)
	}
	got, err := io.ReadAll(in)
	require.NoError(t, err)
	require.Equal(t, "last", string(got))
	require.NoError(t, in.Close())
	_, err = in.Read(nil)
	require.ErrorIs(t, err, transport.ErrClosed)
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
		sent = append(sent, testwait.Start(func() error {
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
		require.NoError(t, testwait.Finish(t, done))
	}
}

// TestFlushedBytesSurviveClose checks that bytes written before Flush can be read after the writer's
// Close, and that Flush then returns the reason of the session's end.
func TestFlushedBytesSurviveClose(t *testing.T) {
	client, server := sessions(t, 1)
	opened, accepted := open(t, client, server)
	want := random(50_000)
	_, err := opened.Write(want)
	require.NoError(t, err)
	require.NoError(t, opened.CloseWrite())
	require.NoError(t, client.Flush(t.Context()))
	require.NoError(t, client.Close())
	got, err := io.ReadAll(accepted)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	require.ErrorIs(t, client.Flush(t.Context()), transport.ErrClosed)
}

// A slot is used again after both ends have closed its stream.
func TestSlotsAreReused(t *testing.T) {
	client, server := sessions(t, 3)
	ctx := context.Background()
	for _, ends := range [][2]transport.Session{{client, server}, {server, client}} {
		for range 100 {
			opened, err := ends[0].Open()
			require.NoError(t, err)
			_, err = opened.Write([]byte("x"))
			require.NoError(t, err)
			accepted, err := ends[1].Accept(ctx)
			require.NoError(t, err)
			_, err = io.ReadFull(accepted, make([]byte, 1))
			require.NoError(t, err)
			require.NoError(t, accepted.Close())
			require.NoError(t, opened.Close())
		}
	}
}

// The search for streams that the peer has reset, which Open makes, does not access memory that
// Close has unmapped.
func TestClosedSessionMemoryIsNotAccessed(t *testing.T) {
	client, server := sessions(t, 3)
	open(t, client, server)
	require.NoError(t, client.Close())
	require.Zero(t, client.ResetByPeer())
}

func TestOpenDuringClose(t *testing.T) {
	for range 50 {
		client, server := sessions(t, 3)
		open(t, client, server)
		opened := testwait.Start(func() error {
			for {
				if _, err := client.Open(); err != nil {
					return err
				}
			}
		})
		require.NoError(t, client.Close())
		require.ErrorIs(t, testwait.Finish(t, opened), transport.ErrClosed)
		require.NoError(t, server.Close())
	}
}

// The rings of the first stream and of bulk streams have the space of large rings, those of other
// streams that of small rings. This also holds for streams in slots that are used again.
func TestSpaceOfStreams(t *testing.T) {
	client, server := sessions(t, 6)
	open := func(f func() (transport.Stream, error), space int) transport.Stream {
		opened, err := f()
		require.NoError(t, err)
		accepted, err := server.Accept(t.Context())
		require.NoError(t, err)
		for _, st := range []transport.Stream{opened, accepted} {
			n, err := st.(transport.Poller).TryWrite(make([]byte, 4<<20))
			require.NoError(t, err)
			require.Equal(t, space, n)
		}
		require.NoError(t, accepted.Close())
		return opened
	}
	open(client.Open, ringsession.UnchargedBytes) // the first stream carries messages
	small := open(client.Open, ringsession.SmallBytes)
	large := open(client.OpenBulk, ringsession.UnchargedBytes)
	require.NoError(t, small.Close())
	require.NoError(t, large.Close())
	for range 4 {
		require.NoError(t, open(client.OpenBulk, ringsession.UnchargedBytes).Close())
		require.NoError(t, open(client.Open, ringsession.SmallBytes).Close())
	}
}

// A doorbell for which the system lacks memory is sent again. After too many failures the session ends,
// because the peer could wait for that doorbell indefinitely.
func TestDoorbellWithoutMemory(t *testing.T) {
	for failures, want := range map[int]struct {
		end      error
		received []byte
	}{
		1:                     {nil, []byte{1, 0}},
		socket.MaxRetries:     {nil, []byte{1, 0}},
		socket.MaxRetries + 1: {unix.ENOBUFS, []byte{}},
	} {
		one, other := sockets(t)
		notify, err := ringsession.NewStarvedNotifier(one, failures)
		require.NoError(t, err)
		err = notify()
		if want.end == nil {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, want.end)
		}
		received, err := io.ReadAll(other)
		require.NoError(t, err)
		require.Equal(t, want.received, received)
		require.NoError(t, other.Close())
	}
}
