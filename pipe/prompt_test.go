package pipe_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// prompt is a transport whose streams can be written without waiting, as those over TCP
// can, and which counts how often its streams of messages are.
type prompt struct {
	transport.Transport
	dialled, accepted *atomic.Int32 // calls of TryWrite at either end
}

func (p prompt) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := p.Transport.Dial(ctx, addr)
	return promptConn{c, p.dialled}, err
}

func (p prompt) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := p.Transport.Listen(ctx, addr)
	return promptListener{l, p.accepted}, err
}

type promptListener struct {
	transport.Listener
	tries *atomic.Int32
}

func (l promptListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return promptConn{c, l.tries}, nil
}

type promptConn struct {
	transport.Conn
	tries *atomic.Int32
}

func (c promptConn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.Conn.(transport.Multiplexer).Multiplex(cfg)
	return &promptSession{Session: s, tries: c.tries}, err
}

func (c promptConn) Stream() (transport.Stream, error) { return c.Conn.(transport.Streamer).Stream() }

type promptSession struct {
	transport.Session
	tries *atomic.Int32
	first sync.Once
}

func (s *promptSession) Open() (transport.Stream, error) { return s.wrap(s.Session.Open()) }

func (s *promptSession) Accept(ctx context.Context) (transport.Stream, error) {
	return s.wrap(s.Session.Accept(ctx))
}

// wrap has the first stream, which carries the messages, counted.
func (s *promptSession) wrap(st transport.Stream, err error) (transport.Stream, error) {
	if err == nil {
		s.first.Do(func() { st = promptStream{st, s.tries} })
	}
	return st, err
}

type promptStream struct {
	transport.Stream
	tries *atomic.Int32
}

func (s promptStream) TryWrite(pieces ...[]byte) (n int, err error) {
	s.tries.Add(1)
	for _, p := range pieces {
		k, err := s.Write(p)
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}

// promptPair is a pipe over such streams, and how often either end has written so.
type promptPair struct {
	client, server     *pipe.Pipe
	byClient, byServer atomic.Int32
}

func connectPrompt(t *testing.T) *promptPair {
	network, p := mem.NewNetwork(), &promptPair{}
	p.client, p.server = connect(t, path{
		dialect: pipe.DialectNative,
		url:     "mem://",
		opts: func() pipe.Options {
			return pipe.Options{
				Dialect:    pipe.DialectNative,
				Transports: []pipe.TransportEntry{{Name: "mem", Transport: prompt{mem.New(network), &p.byClient, &p.byServer}}},
				Channels:   []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}},
			}
		},
	})
	return p
}

// A message is written by its sender if it may be an answer, or the answer to one is what
// it waits for: one has come since the last one. All others leave together.
func TestWhoWritesAMessage(t *testing.T) {
	const trips = 10
	there, back := &pipe.Message{Metadata: []byte("there")}, &pipe.Message{Metadata: []byte("back")}
	for name, c := range map[string]struct {
		more, answered bool
		want           int32
	}{
		"one by one":          {answered: true, want: trips - 1}, // nothing has come before the first
		"one way":             {},
		"more are to follow":  {answered: true, more: true},
		"one way, and follow": {more: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := connectPrompt(t)
				m := *there
				m.More = c.more
				for range trips {
					require.NoError(t, p.client.Write(t.Context(), &m))
					expect(t, p.server, there)
					if c.answered {
						require.NoError(t, p.server.Write(t.Context(), back))
						expect(t, p.client, back)
					}
					synctest.Wait() // whoever wrote is through, not only what he wrote
				}
				require.Equal(t, c.want, p.byClient.Load())
				if c.answered {
					require.EqualValues(t, trips, p.byServer.Load(), "answers")
				}
			})
		})
	}
}
