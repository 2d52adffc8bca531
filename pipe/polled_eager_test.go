package pipe_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// tappedTransport passes on the first stream of the session of each connection that it dials.
type tappedTransport struct {
	transport.Transport
	messages chan transport.Stream
}

func (p tappedTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := p.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return tappedConn{c, c.(transport.Multiplexer), p.messages}, nil
}

type tappedConn struct {
	transport.Conn
	transport.Multiplexer
	messages chan transport.Stream
}

func (c tappedConn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.Multiplexer.Multiplex(cfg)
	return &tappedSession{s, c.messages}, err
}

type tappedSession struct {
	transport.Session
	messages chan transport.Stream
}

func (s *tappedSession) Open() (transport.Stream, error) {
	stream, err := s.Session.Open()
	select {
	case s.messages <- stream:
	default: // it has the first one
	}
	return stream, err
}

// TestPolledHostileEager checks that a message with an eager part, for which there is no credit, ends
// the pipe also if the caller of Next has read the message itself.
func TestPolledHostileEager(t *testing.T) {
	throttle, network, tapped := newThrottle(1<<20), mem.NewNetwork(), make(chan transport.Stream, 1)
	client, server := connect(t, path{
		dialect: pipe.DialectNative,
		url:     "mem://",
		opts: func() pipe.Options {
			tr := tappedTransport{pollableTransport{mem.New(network), throttle}, tapped}
			return pipe.Options{
				Dialect:    pipe.DialectNative,
				Transports: []pipe.TransportEntry{{Name: "mem", Transport: tr}},
				Channels:   []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}},
			}
		},
	})
	throttle.awaitCalls(0, 2)
	received := testwait.Start(func() error { _, err := server.Next(testContext(t)); return err })
	throttle.awaitCalls(1, 2) // Next polls
	m := native.Message{Payloads: []native.Payload{{Length: 100_000, Eager: true}}}
	_, err := (<-tapped).Write(m.Append(nil, false))
	require.NoError(t, err)
	require.ErrorIs(t, testwait.Finish(t, received), pipe.ErrProtocol)
	client.Abort(nil)
}
