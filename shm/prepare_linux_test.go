package shm

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/alone"
	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const sessionStreams = 5

var (
	clients = transport.SessionConfig{Streams: sessionStreams, Client: true}
	servers = transport.SessionConfig{Streams: sessionStreams}
)

// leaveDescriptors lets this process open n more descriptors. lift removes the limit.
func leaveDescriptors(t *testing.T, n int) (lift func()) {
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

// sharedSegment is the segment of a session, as a server creates it.
func sharedSegment(t *testing.T, streams int) *os.File {
	t.Helper()
	s, err := ringnet.CreateShared(streams)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s.File()
}

// A session that was prepared needs no descriptor any more, for all of its streams.
func TestPreparedSessionTakesNoDescriptors(t *testing.T) {
	if !alone.Here(t) {
		return
	}
	leakcheck.Check(t)
	d, a := connect(t, New())
	require.NoError(t, a.PrepareSession(servers))
	require.NoError(t, d.PrepareSession(clients))
	lift := leaveDescriptors(t, 0)
	client, err := d.Multiplex(clients)
	require.NoError(t, err)
	server, err := a.Multiplex(servers)
	require.NoError(t, err)
	for i := range byte(sessionStreams) {
		open := client.Open
		if i == sessionStreams-1 {
			open = client.(transport.BulkSession).OpenBulk
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

// Without a descriptor the server creates no segment, and the client receives none. The
// connection still carries frames.
func TestPrepareSessionWithoutDescriptors(t *testing.T) {
	if !alone.Here(t) {
		return
	}
	leakcheck.Check(t)
	d, a := connect(t, New())
	shared := sharedSegment(t, sessionStreams)
	lift := leaveDescriptors(t, 0)
	require.ErrorIs(t, a.PrepareSession(servers), unix.EMFILE)
	require.NoError(t, a.send(sessionSegment, shared))
	require.ErrorIs(t, d.PrepareSession(clients), unix.EMFILE)
	for _, way := range [][2]*conn{{a, d}, {d, a}} {
		require.NoError(t, way[0].WriteFrames(transport.Frame{[]byte("why")}))
		n, err := way[1].NextFrame()
		require.NoError(t, err)
		require.NoError(t, way[1].ReadBody(make([]byte, n)))
	}
	lift()
}

// A peer that passes another segment, or none, breaks the rules of the transport.
func TestPrepareSessionWithABadPeer(t *testing.T) {
	unsealedSegment := func(t *testing.T) *os.File {
		s, err := ringnet.CreateShared(sessionStreams)
		require.NoError(t, err)
		defer s.Close()
		return sized(t, int64(len(s.Bytes())))
	}
	for name, c := range map[string]struct {
		pass func(t *testing.T, a *conn) error
		want error
	}{
		"no file":       {func(t *testing.T, a *conn) error { return a.send(sessionSegment, nil) }, ErrProtocol},
		"other streams": {func(t *testing.T, a *conn) error { return a.send(sessionSegment, sharedSegment(t, 2*sessionStreams)) }, ErrProtocol},
		"not sealed":    {func(t *testing.T, a *conn) error { return a.send(sessionSegment, unsealedSegment(t)) }, ErrProtocol},
		"no memory":     {func(t *testing.T, a *conn) error { return a.send(sessionSegment, os.Stdin) }, ErrProtocol},
		"hangs up":      {func(t *testing.T, a *conn) error { return a.Close() }, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			leakcheck.Check(t)
			d, a := connect(t, New())
			require.NoError(t, c.pass(t, a))
			require.ErrorIs(t, d.PrepareSession(clients), c.want)
			require.NoError(t, d.Close())
		})
	}
}

// Files that are not due are closed, and fail further reads from that peer.
func TestFilesThatAreNotDue(t *testing.T) {
	for name, pass := range map[string]func(t *testing.T, d, a *conn) (victim *conn){
		"a second segment": func(t *testing.T, d, a *conn) *conn {
			for range 2 {
				require.NoError(t, a.send(sessionSegment, sharedSegment(t, sessionStreams)))
			}
			return d
		},
		"with a doorbell": func(t *testing.T, d, a *conn) *conn {
			require.NoError(t, a.send(somethingNew, os.Stdin))
			return d
		},
		"of the end that dialled": func(t *testing.T, d, a *conn) *conn {
			require.NoError(t, d.send(sessionSegment, sharedSegment(t, sessionStreams)))
			return a
		},
	} {
		t.Run(name, func(t *testing.T) {
			leakcheck.Check(t)
			d, a := connect(t, New())
			victim := pass(t, d, a)
			_, err := victim.NextFrame()
			require.ErrorIs(t, err, ErrProtocol)
			require.NoError(t, d.Close())
			require.NoError(t, a.Close())
		})
	}
}

// Connections that close before they become sessions free the segment and close its file.
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

// A session refuses a segment that was prepared for another number of streams.
func TestPreparedForOtherStreams(t *testing.T) {
	leakcheck.Check(t)
	_, a := connect(t, New())
	require.NoError(t, a.PrepareSession(servers))
	_, err := a.Multiplex(transport.SessionConfig{Streams: 2 * sessionStreams})
	require.ErrorContains(t, err, "is not for 10 streams")
	require.NoError(t, a.Close())
}

// A client that waits for the segment ends when the connection is closed here.
func TestPrepareSessionEndsWithTheConnection(t *testing.T) {
	leakcheck.Check(t)
	d, _ := connect(t, New())
	preparing := patience.Start(func() error { return d.PrepareSession(clients) })
	patience.Asleep(t)
	require.NoError(t, d.Close())
	require.ErrorIs(t, patience.Finish(t, preparing), io.ErrUnexpectedEOF)
}

var _ transport.SessionPreparer = (*conn)(nil)
