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

// newSessions opens a connection with b.Connect and makes a session of it, which allows the pipe's
// own streams, conns streams for a channel and one for host memory. It opens the pipe's own streams
// and returns the two ends of the session, which are closed at the end of the test.
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

// conn opens a stream of the session and returns a connection over each of its two ends.
func (s sessions) conn() (connect, listen transport.Conn) {
	s.t.Helper()
	c, l := s.pair(s.connect.Open)
	return framed.OverStream(c), framed.OverStream(l)
}

// bulk returns both ends of a new stream for host memory. It is the session's own bulk stream if
// the transport has such streams. Otherwise it is an ordinary stream of the session if b.oneSession
// is true or connections have no streams, and the stream of a new connection if not.
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
	if errors.Is(err, transport.ErrNotSupported) {
		return s.pair(s.connect.Open)
	}
	require.NoError(s.t, err)
	other, err := l.(transport.Multiplexer).Stream()
	require.NoError(s.t, err)
	return one, other
}

// pair calls open, which must open a stream at the connecting end, accepts the stream at the
// listening end, and returns both ends.
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

// carriesBulk reports whether sessions over the connections of b have a bulk stream for host
// memory. The test fails if such a stream is supported but cannot be opened.
func carriesBulk(t *testing.T, b Backend) bool {
	t.Helper()
	_, err := newSessions(t, b, 0).connect.OpenBulk()
	if !errors.Is(err, transport.ErrNotSupported) {
		require.NoError(t, err)
	}
	return err == nil
}
