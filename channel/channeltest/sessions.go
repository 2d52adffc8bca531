package channeltest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// pipeStreams is the number of streams that a native pipe uses itself. They are opened first.
const pipeStreams = 2

// sessions are the two ends of a native pipe's session.
type sessions struct {
	t               *testing.T
	connect, listen transport.Session
}

// newSessions makes a new connection a session that allows the pipe's streams, conns streams for a
// channel and one for host memory.
func newSessions(t *testing.T, b Backend, conns int) sessions {
	t.Helper()
	c, l := b.Connect(t)
	begin := func(conn transport.Conn, client bool) transport.Session {
		cfg := transport.SessionConfig{Client: client, Streams: pipeStreams + conns + 1}
		s, err := conn.(transport.Multiplexer).Multiplex(cfg)
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	s := sessions{t: t, connect: begin(c, true), listen: begin(l, false)}
	for range pipeStreams {
		s.pair(s.connect.Open)
	}
	return s
}

// conn returns both ends of a connection of the channel.
func (s sessions) conn() (connect, listen transport.Conn) {
	s.t.Helper()
	c, l := s.pair(s.connect.Open)
	return framed.OverStream(c), framed.OverStream(l)
}

// bulk returns both ends of the stream for host memory: of the session, if it has one for that or
// if b.oneSession is set, else of a new connection.
func (s sessions) bulk(b Backend) (connect, listen transport.Stream) {
	s.t.Helper()
	if m, ok := s.connect.(transport.BulkSession); ok {
		return s.pair(m.OpenBulk)
	}
	if b.oneSession {
		return s.pair(s.connect.Open)
	}
	c, l := b.Connect(s.t)
	one, err := c.(transport.Streamer).Stream()
	require.NoError(s.t, err)
	other, err := l.(transport.Streamer).Stream()
	require.NoError(s.t, err)
	return one, other
}

// pair opens a stream at one end and accepts it at the other.
func (s sessions) pair(open func() (transport.Stream, error)) (connect, listen transport.Stream) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testwait.Limit)
	defer cancel()
	connect, err := open()
	require.NoError(s.t, err)
	listen, err = s.listen.Accept(ctx)
	require.NoError(s.t, err)
	return connect, listen
}

// carriesBulk reports whether the sessions over connect have a stream for host memory.
func carriesBulk(t *testing.T, connect Connect) bool {
	t.Helper()
	c, l := connect(t)
	var all bool
	for i, conn := range []transport.Conn{c, l} {
		s, err := conn.(transport.Multiplexer).Multiplex(transport.SessionConfig{Client: i == 0})
		require.NoError(t, err)
		_, all = s.(transport.BulkSession)
		require.NoError(t, s.Close())
	}
	return all
}
