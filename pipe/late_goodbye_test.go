package pipe_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// hesitant is a transport whose dialling ends say nothing on their control streams
// until they may.
type hesitant struct {
	transport.Transport
	may chan struct{}
}

func (h hesitant) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := h.Transport.Dial(ctx, addr)
	return hesitantConn{c, h.may}, err
}

type hesitantConn struct {
	transport.Conn
	may chan struct{}
}

func (c hesitantConn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.Conn.(transport.Multiplexer).Multiplex(cfg)
	return &hesitantSession{Session: s, may: c.may}, err
}

type hesitantSession struct {
	transport.Session
	may     chan struct{}
	streams int
}

func (s *hesitantSession) Open() (transport.Stream, error) {
	st, err := s.Session.Open()
	if s.streams++; s.streams == 2 {
		st = hesitantStream{st, s.may}
	}
	return st, err
}

type hesitantStream struct {
	transport.Stream
	may chan struct{}
}

func (s hesitantStream) Write(p []byte) (int, error) {
	<-s.may
	return s.Stream.Write(p)
}

// A process without processor time says goodbye late. Whenever that comes, the end of
// its messages is behind it, and the pipe ends well.
func TestNativeLateGoodbye(t *testing.T) {
	for _, late := range []time.Duration{0, 500 * time.Millisecond, 1500 * time.Millisecond, 4 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { closeLate(t, late) })
		})
	}
}

func closeLate(t *testing.T, late time.Duration) {
	path, may := nativePath(), make(chan struct{})
	a := newContext(t, path, usual, func(o *pipe.Options) {
		o.Transports[0].Transport = hesitant{o.Transports[0].Transport, may}
	})
	client, server := connectContexts(t, a, newContext(t, path, usual), path.url)
	closed := patience.Start(client.Close)
	time.AfterFunc(late, func() { close(may) })
	_, err := server.Next(testContext(t))
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
	require.NoError(t, server.Close())
	require.NoError(t, patience.Finish(t, closed))
}
