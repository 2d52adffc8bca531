package shm

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ringsession"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const sessionStreams = 5

var (
	clients = transport.SessionConfig{MaxStreams: sessionStreams, Client: true}
	servers = transport.SessionConfig{MaxStreams: sessionStreams}
)

// limitDescriptors lowers the limit of open files so that this process can open n more. lift
// restores the limit.
func limitDescriptors(t *testing.T, n int) (lift func()) {
	t.Helper()
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	set := func(limit uint64) {
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: before.Max}))
	}
	limit := uint64(0)
	for free := 0; ; limit++ {
		if _, err := unix.FcntlInt(uintptr(limit), unix.F_GETFD, 0); err == nil {
			continue
		}
		if free++; free > n {
			break
		}
	}
	set(limit)
	return func() { set(before.Cur) }
}

// sharedSegment creates the segment that a server prepares for that number of streams, and returns
// its file. Both are closed when the test ends.
func sharedSegment(t *testing.T, streams int) *os.File {
	t.Helper()
	s, err := ringsession.CreateSegment(streams)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s.File()
}

// A prepared session needs no descriptor for any of its streams.
func TestPreparedSessionTakesNoDescriptors(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	leakcheck.Check(t)
	d, a := connect(t, New())
	require.NoError(t, a.PrepareSession(servers))
	require.NoError(t, d.PrepareSession(clients))
	lift := limitDescriptors(t, 0)
	client, err := d.Multiplex(clients)
	require.NoError(t, err)
	server, err := a.Multiplex(servers)
	require.NoError(t, err)
	for i := range byte(sessionStreams) {
		open := client.Open
		if i == sessionStreams-1 {
			open = client.OpenBulk
		}
		out, err := open()
		require.NoError(t, err)
		in, err := server.Accept(t.Context())
		require.NoError(t, err)
		for _, way := range [][2]transport.Stream{{out, in}, {in, out}} {
			_, err = way[0].Write([]byte{i})
			require.NoError(t, err)
			var got [1]byte
			_, err = io.ReadFull(way[1], got[:])
			require.NoError(t, err)
			require.Equal(t, i, got[0])
		}
	}
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
	lift()
}

// If the process has no descriptor left, PrepareSession fails: the server creates no segment, and
// the client receives none. The connection still carries frames.
func TestPrepareSessionWithoutDescriptors(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	leakcheck.Check(t)
	d, a := connect(t, New())
	shared := sharedSegment(t, sessionStreams)
	lift := limitDescriptors(t, 0)
	require.ErrorIs(t, a.PrepareSession(servers), unix.EMFILE)
	require.NoError(t, a.send(eventSegment, shared))
	require.ErrorIs(t, d.PrepareSession(clients), unix.EMFILE)
	for _, way := range [][2]*conn{{a, d}, {d, a}} {
		require.NoError(t, way[0].WriteFrames(transport.Frame{[]byte("why")}))
		n, err := way[1].NextFrame()
		require.NoError(t, err)
		require.NoError(t, way[1].ReadBody(make([]byte, n)))
	}
	lift()
}

// PrepareSession of a client returns an error that matches ErrProtocol if the peer passes a wrong
// segment or no file, and one that matches io.ErrUnexpectedEOF if the peer hangs up.
func TestPrepareSessionWithBadPeer(t *testing.T) {
	unsealedSegment := func(t *testing.T) *os.File {
		s, err := ringsession.CreateSegment(sessionStreams)
		require.NoError(t, err)
		defer s.Close()
		return sized(t, int64(len(s.Bytes())))
	}
	for name, c := range map[string]struct {
		act  func(t *testing.T, a *conn) error
		want error
	}{
		"no file":       {func(t *testing.T, a *conn) error { return a.send(eventSegment, nil) }, ErrProtocol},
		"other streams": {func(t *testing.T, a *conn) error { return a.send(eventSegment, sharedSegment(t, 2*sessionStreams)) }, ErrProtocol},
		"not sealed":    {func(t *testing.T, a *conn) error { return a.send(eventSegment, unsealedSegment(t)) }, ErrProtocol},
		"no memory":     {func(t *testing.T, a *conn) error { return a.send(eventSegment, os.Stdin) }, ErrProtocol},
		"hangs up":      {func(t *testing.T, a *conn) error { return a.Close() }, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			leakcheck.Check(t)
			d, a := connect(t, New())
			require.NoError(t, c.act(t, a))
			require.ErrorIs(t, d.PrepareSession(clients), c.want)
			require.NoError(t, d.Close())
		})
	}
}

// Files that a peer sends without need are closed, and further reads from that peer fail.
func TestUnexpectedFiles(t *testing.T) {
	for name, violate := range map[string]func(t *testing.T, d, a *conn) (victim *conn){
		"a second segment": func(t *testing.T, d, a *conn) *conn {
			for range 2 {
				require.NoError(t, a.send(eventSegment, sharedSegment(t, sessionStreams)))
			}
			return d
		},
		"with a doorbell": func(t *testing.T, d, a *conn) *conn {
			require.NoError(t, a.send(eventChanged, os.Stdin))
			return d
		},
		"of the end that dialled": func(t *testing.T, d, a *conn) *conn {
			require.NoError(t, d.send(eventSegment, sharedSegment(t, sessionStreams)))
			return a
		},
	} {
		t.Run(name, func(t *testing.T) {
			leakcheck.Check(t)
			d, a := connect(t, New())
			victim := violate(t, d, a)
			_, err := victim.NextFrame()
			require.ErrorIs(t, err, ErrProtocol)
			require.NoError(t, d.Close())
			require.NoError(t, a.Close())
		})
	}
}

// A connection that is closed before it becomes a session releases the segment and its file.
func TestPreparedConnectionCloses(t *testing.T) {
	leakcheck.Check(t)
	fds, maps := inUse(t)
	for _, prepared := range []bool{false, true} {
		d, a := connect(t, New())
		require.NoError(t, a.PrepareSession(servers))
		if prepared {
			require.NoError(t, d.PrepareSession(clients))
		}
		require.NoError(t, d.Close())
		require.NoError(t, a.Close())
		require.ErrorIs(t, a.PrepareSession(servers), transport.ErrClosed)
		endFDs, endMaps := inUse(t)
		require.Equal(t, fds, endFDs)
		require.Equal(t, maps, endMaps)
	}
}

// A session rejects a segment that was prepared for another number of streams.
func TestPreparedForOtherStreams(t *testing.T) {
	leakcheck.Check(t)
	_, a := connect(t, New())
	require.NoError(t, a.PrepareSession(servers))
	_, err := a.Multiplex(transport.SessionConfig{MaxStreams: 2 * sessionStreams})
	require.ErrorContains(t, err, "is not for 10 streams")
	require.NoError(t, a.Close())
}

// PrepareSession of a client returns when the connection is closed here.
func TestPrepareSessionEndsWithConnection(t *testing.T) {
	leakcheck.Check(t)
	d, _ := connect(t, New())
	preparing := testwait.Start(func() error { return d.PrepareSession(clients) })
	testwait.WaitIdle(t)
	require.NoError(t, d.Close())
	require.ErrorIs(t, testwait.Finish(t, preparing), io.ErrUnexpectedEOF)
}

var _ transport.Multiplexer = (*conn)(nil)

// peerWithFullSocket returns a raw peer that uses doorbells, and the connection to it. The peer has
// not read its doorbells, so that no more fit into its socket.
func peerWithFullSocket(t *testing.T) (*rawPeer, *conn) {
	t.Helper()
	l := listen(t)
	s := newRawPeer(t, l)
	inbox, err := createInbox()
	require.NoError(t, err)
	t.Cleanup(inbox.close)
	inbox.marker().Store(doorbellMagic)
	s.inbox = inbox
	c := s.handshake(t, l, 0, 1).(*conn)
	require.True(t, c.doorbells)
	var unreadBytes error
	require.NoError(t, c.raw.Control(func(fd uintptr) {
		for unreadBytes == nil {
			unreadBytes = unix.Send(int(fd), doorbell, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}
	}))
	require.ErrorIs(t, unreadBytes, unix.EAGAIN)
	return s, c
}

func multiplex(c *conn) <-chan error {
	return testwait.Start(func() error {
		_, err := c.Multiplex(transport.SessionConfig{MaxStreams: 1})
		return err
	})
}

// The byte by which an end switches to a session arrives even if the socket was full of doorbells.
func TestSwitchToSessionIsNotLost(t *testing.T) {
	leakcheck.Check(t)
	s, c := peerWithFullSocket(t)
	multiplexed := multiplex(c)
	testwait.WaitIdle(t)
	event := testwait.Start(func() error {
		for what := []byte{eventChanged}; what[0] != eventSession; {
			if _, err := io.ReadFull(s, what); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, testwait.Finish(t, event))
	require.NoError(t, testwait.Finish(t, multiplexed))
}

// Multiplex fails if the socket is full and the peer does not read from it.
func TestSwitchWhilePeerDoesNotRead(t *testing.T) {
	leakcheck.Check(t)
	_, c := peerWithFullSocket(t)
	c.sendTimeout = time.Millisecond
	require.ErrorIs(t, testwait.Finish(t, multiplex(c)), ErrProtocol)
}

// Multiplex succeeds if the peer is gone: the session ends at once, as it does when a peer closes.
func TestSwitchAfterPeerClosed(t *testing.T) {
	leakcheck.Check(t)
	dialled, accepted := connect(t, New())
	require.NoError(t, dialled.Close())
	s, err := accepted.Multiplex(transport.SessionConfig{MaxStreams: 1})
	require.NoError(t, err)
	_, err = s.Accept(t.Context())
	require.ErrorIs(t, err, io.EOF)
}

// CloseWrite of a connection that was made a session returns ErrHandedOver, also when both ends have
// switched and the rings of the connection are unmapped. The session goes on.
func TestCloseWriteAfterMultiplex(t *testing.T) {
	leakcheck.Check(t)
	withBothKinds(t, func(t *testing.T, tr *Transport) {
		d, a := connect(t, tr)
		client, err := d.Multiplex(clients)
		require.NoError(t, err)
		server, err := a.Multiplex(servers)
		require.NoError(t, err)
		if d.doorbells {
			<-d.receiveDone
			<-a.receiveDone
		}
		require.ErrorIs(t, d.CloseWrite(), ErrHandedOver)
		require.ErrorIs(t, a.CloseWrite(), ErrHandedOver)
		out, err := client.Open()
		require.NoError(t, err)
		_, err = out.Write([]byte("still open"))
		require.NoError(t, err)
		in, err := server.Accept(t.Context())
		require.NoError(t, err)
		got := make([]byte, len("still open"))
		_, err = io.ReadFull(in, got)
		require.NoError(t, err)
		require.Equal(t, "still open", string(got))
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	})
}
