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

// directTransport is a transport whose streams support TryWrite, as those over TCP do. It
// counts the calls on the streams of messages.
type directTransport struct {
	transport.Transport
	dialled, accepted *atomic.Int32 // calls of TryWrite at either end
}

func (p directTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := p.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return directConn{c, c.(transport.Multiplexer), p.dialled}, nil
}

func (p directTransport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := p.Transport.Listen(ctx, addr)
	return directListener{l, p.accepted}, err
}

type directListener struct {
	transport.Listener
	tries *atomic.Int32
}

func (l directListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return directConn{c, c.(transport.Multiplexer), l.tries}, nil
}

type directConn struct {
	transport.Conn
	transport.Multiplexer
	tries *atomic.Int32
}

func (c directConn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.Multiplexer.Multiplex(cfg)
	return &directSession{Session: s, tries: c.tries}, err
}

type directSession struct {
	transport.Session
	tries *atomic.Int32
	first sync.Once
}

func (s *directSession) Open() (transport.Stream, error) { return s.wrap(s.Session.Open()) }

func (s *directSession) Accept(ctx context.Context) (transport.Stream, error) {
	return s.wrap(s.Session.Accept(ctx))
}

// wrap returns st, or, for the first stream of the session, which carries the messages, a stream
// that counts the calls of TryWrite on st. It returns err unchanged.
func (s *directSession) wrap(st transport.Stream, err error) (transport.Stream, error) {
	if err == nil {
		s.first.Do(func() { st = directStream{st, s.tries} })
	}
	return st, err
}

type directStream struct {
	transport.Stream
	tries *atomic.Int32
}

func (s directStream) TryWrite(pieces ...[]byte) (n int, err error) {
	s.tries.Add(1)
	for _, p := range pieces {
		k, err := s.Write(p)
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}

// directPair is a pipe over such streams, with the number of calls of TryWrite at each
// end.
type directPair struct {
	client, server     *pipe.Pipe
	byClient, byServer atomic.Int32
}

func connectDirect(t *testing.T) *directPair {
	network, p := mem.NewNetwork(), &directPair{}
	p.client, p.server = connect(t, path{
		dialect: pipe.DialectNative,
		url:     "mem://",
		opts: func() pipe.Options {
			return pipe.Options{
				Dialect:    pipe.DialectNative,
				Transports: []pipe.TransportEntry{{Name: "mem", Transport: directTransport{mem.New(network), &p.byClient, &p.byServer}}},
				Channels:   []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}},
			}
		},
	})
	return p
}

// TestDirectWriteOrEnqueue checks when a caller of Write writes to the stream itself: only if a
// message was received since its last write, and no more are announced with More. That message may
// be a request to which it replies, or a reply before its next request. All other messages are
// enqueued, so that they leave together.
func TestDirectWriteOrEnqueue(t *testing.T) {
	const trips = 10
	request, reply := &pipe.Message{Metadata: []byte("request")}, &pipe.Message{Metadata: []byte("reply")}
	for name, c := range map[string]struct {
		more, answered bool
		want           int32
	}{
		"one by one":          {answered: true, want: trips - 1}, // nothing was received before the first
		"one way":             {},
		"more are to follow":  {answered: true, more: true},
		"one way, and follow": {more: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := connectDirect(t)
				m := *request
				m.More = c.more
				for range trips {
					require.NoError(t, p.client.Write(t.Context(), &m))
					expect(t, p.server, request)
					if c.answered {
						require.NoError(t, p.server.Write(t.Context(), reply))
						expect(t, p.client, reply)
					}
					synctest.Wait() // until the writer's goroutine is idle
				}
				require.Equal(t, c.want, p.byClient.Load())
				if c.answered {
					require.EqualValues(t, trips, p.byServer.Load(), "replies")
				}
			})
		})
	}
}
