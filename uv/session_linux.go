package uv

import (
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Multiplex makes the connection a session of streams, from the next byte on in both directions,
// and returns it. The session first reads the bytes that the connection has read ahead. Its streams
// implement [transport.Poller]: a goroutine that waits for a message polls the socket before it
// blocks, see [WithSpin]. The error is ErrClosed, ErrHandedOver if the connection is already a stream
// or a session, or means that cfg is invalid. After an invalid cfg the connection can only be closed.
func (c *conn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.stream(c.tcp)
	if err != nil {
		return nil, err
	}
	poller, err := wait.NewSocketPoller(c.tcp, c.waits)
	if err != nil {
		return nil, c.readError(err)
	}
	return mux.New(&polledStream{s, poller}, cfg)
}

// polledStream implements mux.Pollable on a connection over plain TCP.
type polledStream struct {
	*stream
	poller *wait.SocketPoller
}

var _ mux.Pollable = (*polledStream)(nil)

// TryRead returns first the bytes that were read ahead, then those of the socket.
func (s *polledStream) TryRead(p []byte) (int, error) {
	if s.conn.closed.Load() {
		return 0, transport.ErrClosed
	}
	if s.bufferedReader.buffered != nil {
		return s.bufferedReader.Read(p)
	}
	n, err := s.poller.TryRead(p)
	if n > 0 {
		failpoint.Here()
	}
	return n, s.conn.readError(err)
}

func (s *polledStream) Spin(ready func() bool, due bool) bool { return s.poller.Spin(ready, due) }
func (s *polledStream) Wait(stop func() bool) error           { return s.conn.readError(s.poller.Wait(stop)) }
func (s *polledStream) Wake()                                 { s.poller.Wake() }

func (s *polledStream) SetReadDeadline(t time.Time) error { return s.poller.SetReadDeadline(t) }
func (s *polledStream) SetDeadline(t time.Time) error {
	if err := s.SetReadDeadline(t); err != nil {
		return err
	}
	return s.SetWriteDeadline(t)
}
