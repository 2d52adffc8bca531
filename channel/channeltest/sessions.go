package channeltest

import (
	"context"
	"errors"
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
		cfg := transport.SessionConfig{Client: client, MaxStreams: pipeStreams + conns + 1}
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
	if st, err := s.connect.OpenBulk(); !errors.Is(err, transport.ErrNotSupported) {
		return s.pair(func() (transport.Stream, error) { return st, err })
	}
	if b.oneSession {
		return s.pair(s.connect.Open)
	}
	c, l := b.Connect(s.t)
	one, err := c.(transport.Multiplexer).Stream()
	require.NoError(s.t, err)
	other, err := l.(transport.Multiplexer).Stream()
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

// carriesBulk reports whether the sessions of b have a stream for host memory.
func carriesBulk(t *testing.T, b Backend) bool {
	t.Helper()
	_, err := newSessions(t, b, 0).connect.OpenBulk()
	if !errors.Is(err, transport.ErrNotSupported) {
		require.NoError(t, err)
	}
	return err == nil
}
