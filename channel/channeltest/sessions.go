package channeltest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// own is how many streams of its session a native pipe keeps to itself; they are
// the first.
const own = 2

// sessions are the two ends of the session of a native pipe.
type sessions struct {
	t               *testing.T
	connect, listen transport.Session
}

// newSessions turns a new connection into a session with room for the pipe's
// streams, for conns of a channel and for bulk.
func newSessions(t *testing.T, b Backend, conns int) sessions {
	t.Helper()
	c, l := b.Connect(t)
	begin := func(conn transport.Conn, client bool) transport.Session {
		cfg := transport.SessionConfig{Client: client, Streams: own + conns + 1}
		s, err := conn.(transport.Multiplexer).Multiplex(cfg)
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	s := sessions{t: t, connect: begin(c, true), listen: begin(l, false)}
	for range own {
		s.pair(s.connect.Open)
	}
	return s
}

// conn makes both ends of a channel's connection, as a pipe does.
func (s sessions) conn() (connect, listen transport.Conn) {
	s.t.Helper()
	c, l := s.pair(s.connect.Open)
	return framed.Over(c), framed.Over(l)
}

// bulk makes both ends of the stream for host memory: where a pipe has it, or in
// the session, where a pipe has it whose bulk connection does not come about.
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

// pair opens a stream at the one end and takes it at the other.
func (s sessions) pair(open func() (transport.Stream, error)) (connect, listen transport.Stream) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience.Limit)
	defer cancel()
	connect, err := open()
	require.NoError(s.t, err)
	listen, err = s.listen.Accept(ctx)
	require.NoError(s.t, err)
	return connect, listen
}

// carriesBulk reports whether all native pipes over connect have their bulk stream
// in the session.
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
