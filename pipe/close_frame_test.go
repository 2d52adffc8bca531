package pipe_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// delayedControl is a transport whose clients block writes to the control stream until
// release is closed.
type delayedControl struct {
	transport.Transport
	release chan struct{}
}

func (d delayedControl) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := d.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return delayedControlConn{c, c.(transport.Multiplexer), d.release}, nil
}

type delayedControlConn struct {
	transport.Conn
	transport.Multiplexer
	release chan struct{}
}

func (c delayedControlConn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.Multiplexer.Multiplex(cfg)
	return &delayedControlSession{Session: s, release: c.release}, err
}

type delayedControlSession struct {
	transport.Session
	release chan struct{}
	streams int
}

func (s *delayedControlSession) Open() (transport.Stream, error) {
	st, err := s.Session.Open()
	if s.streams++; s.streams == 2 {
		st = delayedControlStream{st, s.release}
	}
	return st, err
}

type delayedControlStream struct {
	transport.Stream
	release chan struct{}
}

func (s delayedControlStream) Write(p []byte) (int, error) {
	<-s.release
	return s.Stream.Write(p)
}

// TestNativeCloseFrameIsLate checks that the peer sees an orderly close however late the close
// frame is sent, as by a process without processor time. The end of the message stream follows the
// close frame.
func TestNativeCloseFrameIsLate(t *testing.T) {
	for _, delay := range []time.Duration{0, 500 * time.Millisecond, 1500 * time.Millisecond, 4 * time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { closeDelayed(t, delay) })
		})
	}
}

func closeDelayed(t *testing.T, delay time.Duration) {
	path, release := nativePath(), make(chan struct{})
	a := newContext(t, path, defaultTimeouts, func(o *pipe.Options) {
		o.Transports[0].Transport = delayedControl{o.Transports[0].Transport, release}
	})
	client, server := connectContexts(t, a, newContext(t, path, defaultTimeouts), path.url)
	closed := testwait.Start(client.Close)
	time.AfterFunc(delay, func() { close(release) })
	_, err := server.Next(testContext(t))
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
	require.NoError(t, server.Close())
	require.NoError(t, testwait.Finish(t, closed))
}
