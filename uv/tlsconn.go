package uv

import (
	"bufio"
	"crypto/tls"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// recordSize is the largest size of a record. Small frames are gathered into one; the larger
	// part of a large frame is encrypted without copying.
	recordSize = 16 << 10

	// closeTimeout bounds how long Close and CloseWrite wait to notify a peer that has stopped
	// reading.
	closeTimeout = 500 * time.Millisecond

	// writeGrace is the time that CloseWrite leaves to a write in progress: one that has space and
	// was only delayed must not end within a record.
	writeGrace = closeTimeout / 2
)

// tlsConn is one end of a connection over TLS. It implements transport.Conn,
// transport.Identified and transport.Multiplexer.
type tlsConn struct {
	*conn
	tls    *tls.Conn
	socket *socket       // below TLS
	name   string        // that the peer has proved; empty if the peer dialled
	failed error         // why the handshake failed
	finish func()        // starts closing the writing half, once
	ending chan struct{} // closed when that begins
	ended  chan error    // holds its result

	writing sync.Mutex // held by a write
	broken  bool       // the stream ends within a record
	out     *bufio.Writer
	header  [frame.HeaderSize]byte
}

var _ transport.Identified = (*tlsConn)(nil)

// newTLSConn returns a connection that owns s and secure. secure is TLS over the socket s and has
// not performed its handshake. spin is as for newConn.
func newTLSConn(s *socket, secure *tls.Conn, spin time.Duration) *tlsConn {
	c := &tlsConn{
		conn:   newConn(s.TCPConn, tlsReader{secure, s}, spin),
		tls:    secure,
		socket: s,
		ending: make(chan struct{}),
		ended:  make(chan error, 1),
		out:    bufio.NewWriterSize(secure, recordSize),
	}
	c.finish = sync.OnceFunc(func() { go func() { c.ended <- c.endWriting() }() })
	return c
}

// checkUsable returns the error of all calls for frames or streams: ErrClosed after Close, or the
// reason why the handshake failed. Otherwise it returns nil.
func (c *tlsConn) checkUsable() error {
	if c.closed.Load() {
		return transport.ErrClosed
	}
	return c.failed
}

func (c *tlsConn) WriteFrames(frames ...transport.Frame) error {
	if err := c.checkUsable(); err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	switch {
	case c.finished.Load():
		return transport.ErrClosed
	case c.out == nil:
		return ErrHandedOver
	}
	for _, f := range frames {
		c.out.Write(frame.AppendHeader(c.header[:0], frame.Size(f)))
		for _, p := range f {
			c.out.Write(p)
		}
	}
	err := c.out.Flush() // the first error of all
	c.broken = err != nil
	return c.writeError(err)
}

func (c *tlsConn) NextFrame() (int64, error) {
	if err := c.checkUsable(); err != nil {
		return 0, err
	}
	return c.conn.NextFrame()
}

func (c *tlsConn) ReadBody(dst ...[]byte) error {
	if err := c.checkUsable(); err != nil {
		return err
	}
	return c.conn.ReadBody(dst...)
}

// writeError is conn.writeError for the errors of crypto/tls. If this end has sent an alert about
// invalid bytes of the peer, which is why it can write no more, the error matches
// transport.ErrFrame.
func (c *tlsConn) writeError(err error) error {
	if alertBy(err) == ours {
		err = frameError(err)
	}
	return c.conn.writeError(err)
}

// CloseWrite implements transport.Conn. It sends close_notify and closes the writing half of the
// socket, and waits for that for at most closeTimeout. If the socket has no space by then it
// returns nil, and the sending goes on in a goroutine, which Close ends. Further calls return the
// result of the first.
func (c *tlsConn) CloseWrite() error {
	c.finished.Store(true)
	c.finish()
	<-c.ending // the timeout is for the sending, not for the start of a goroutine
	enough := time.NewTimer(closeTimeout)
	defer enough.Stop()
	select {
	case err := <-c.ended:
		c.ended <- err // for the next call
		return err
	case <-enough.C:
		return nil
	}
}

// endWriting sends close_notify and closes the writing half of the socket. It ends a blocked write
// by a deadline; the stream then ends within a record, and no close_notify can follow. The error is
// that of the handshake if it failed, or of the socket. It runs once, on the goroutine that finish
// starts.
func (c *tlsConn) endWriting() error {
	close(c.ending)
	if c.failed != nil {
		return c.failed
	}
	if !c.writing.TryLock() {
		limit := time.Now().Add(writeGrace)
		if c.closed.Load() { // the bytes may be lost
			limit = past
		}
		c.tcp.SetWriteDeadline(limit)
		c.writing.Lock()
		c.tcp.SetWriteDeadline(time.Time{})
	}
	defer c.writing.Unlock()
	if !c.broken {
		if err := c.tls.CloseWrite(); err != nil {
			return err
		}
	}
	return c.tcp.CloseWrite()
}

// Close implements transport.Conn. It sends close_notify first, as CloseWrite does and for as long:
// otherwise the connection would look cut off to the peer. Further calls return nil.
func (c *tlsConn) Close() error {
	c.finished.Store(true)
	if c.closed.Swap(true) {
		return nil
	}
	_ = c.CloseWrite()
	return c.tcp.Close()
}

// PeerIdentity implements [transport.Identified]. The error is that of the handshake if it failed.
func (c *tlsConn) PeerIdentity() (transport.Identity, error) {
	if c.failed != nil {
		return transport.Identity{}, c.failed
	}
	state := c.tls.ConnectionState()
	return transport.Identity{TLS: &state}, nil
}

// Stream implements [transport.Multiplexer]. A read deadline of the stream loses no bytes. A write
// deadline may end the stream within a record, after which it cannot be written. The error is
// ErrClosed, ErrHandedOver, or the reason why the handshake failed.
func (c *tlsConn) Stream() (transport.Stream, error) { return c.stream() }

// Multiplex implements [transport.Multiplexer]. The goroutine that reads for the session polls the
// socket before it blocks, see [WithSpin]. The error is that of Stream, or means that cfg is
// invalid.
func (c *tlsConn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	reader, err := wait.NewReader(c.tcp, c.spin)
	if err != nil {
		return nil, err
	}
	s, err := c.stream()
	if err != nil {
		return nil, err
	}
	c.socket.src, c.socket.quota = reader, cfg.Quota
	return mux.New(s, cfg)
}

func (c *tlsConn) stream() (*tlsStream, error) {
	if err := c.checkUsable(); err != nil {
		return nil, err
	}
	buffered, err := c.takeBuffered()
	if err != nil {
		return nil, err
	}
	c.out = nil
	return &tlsStream{
		end:    end{conn: c.conn, bufferedReader: bufferedReader{buffered: buffered, socket: tlsReader{c.tls, c.socket}}},
		secure: c,
	}, nil
}

// tlsStream implements transport.Stream on a connection over TLS. Closing it closes the connection.
type tlsStream struct {
	end
	secure *tlsConn
}

// Write implements net.Conn. After an error the connection cannot be written any more: an incomplete
// record cannot be completed.
func (s *tlsStream) Write(p []byte) (int, error) {
	c := s.secure
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.finished.Load() {
		return 0, transport.ErrClosed
	}
	n, err := c.tls.Write(p)
	c.broken = c.broken || err != nil
	return n, c.writeError(err)
}

// TryWrite implements transport.Stream. It writes nothing and returns 0 and nil: package tls cannot
// continue a record that the socket accepts in part.
func (s *tlsStream) TryWrite(...[]byte) (int, error) { return 0, nil }

func (s *tlsStream) CloseWrite() error { return s.secure.CloseWrite() }
func (s *tlsStream) Close() error      { return s.secure.Close() }
