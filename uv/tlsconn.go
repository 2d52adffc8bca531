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

// newTLSConn returns a connection that owns the socket s and secure, which is TLS over s. secure
// has not performed its handshake; newTLSConn does not start it. waits determines how the
// reader of a session waits, if Multiplex makes the connection a session.
func newTLSConn(s *socket, secure *tls.Conn, waits wait.Config) *tlsConn {
	c := &tlsConn{
		conn:   newConn(s.TCPConn, tlsReader{secure, s}, waits),
		tls:    secure,
		socket: s,
		ending: make(chan struct{}),
		ended:  make(chan error, 1),
		out:    bufio.NewWriterSize(secure, recordSize),
	}
	c.finish = sync.OnceFunc(func() { go func() { c.ended <- c.endWriting() }() })
	return c
}

// checkUsable returns nil if the connection can be used. It returns ErrClosed after Close, and
// otherwise the reason why the handshake failed, if it has.
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

// writeError returns the error that the caller of a write gets for err, an error of crypto/tls or
// nil. A nil err gives nil. Any other err gives ErrClosed after CloseWrite or Close, and otherwise
// err itself. If this end cannot write any more because it has sent an alert about invalid bytes of
// the peer, err is wrapped so that it matches transport.ErrFrame.
func (c *tlsConn) writeError(err error) error {
	if alertBy(err) == ours {
		err = frameError(err)
	}
	return c.conn.writeError(err)
}

// CloseWrite sends close_notify and closes the writing half of the socket, so that the peer reads
// io.EOF after the bytes that were written. If a write in progress does not end in time, it is
// interrupted, and the connection is cut off for the peer. Writes return ErrClosed from then on.
// CloseWrite waits for at most closeTimeout. If the socket has no space by then, it returns nil, and
// a goroutine goes on sending until Close. A further call sends nothing and waits again for the same
// result. The error is that of the handshake if that failed, or of the socket.
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

// endWriting closes c.ending, sends close_notify and closes the writing half of the socket. A write
// that is in progress gets writeGrace to end, or no time after Close; a write that is then
// interrupted leaves an incomplete record, and no close_notify is sent. It returns the error of the
// handshake, if that failed, or of the socket. It is called once, on a goroutine that c.finish
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

// Close ends both directions. WriteFrames, NextFrame and ReadBody return ErrClosed from then on,
// also calls that are blocked. Close sends close_notify first, because otherwise the peer would see
// the connection as cut off, and waits for that for at most closeTimeout. The error is that of
// closing the socket. Further calls return nil at once.
func (c *tlsConn) Close() error {
	c.finished.Store(true)
	if c.closed.Swap(true) {
		return nil
	}
	_ = c.CloseWrite()
	return c.tcp.Close()
}

// PeerIdentity returns the identity that the peer has proved: the state of the TLS connection, with
// the peer's certificates if it has sent any. It stays available after Close. If the handshake
// failed, it returns the zero Identity and the error of the handshake.
func (c *tlsConn) PeerIdentity() (transport.Identity, error) {
	if c.failed != nil {
		return transport.Identity{}, c.failed
	}
	state := c.tls.ConnectionState()
	return transport.Identity{TLS: &state}, nil
}

// Stream makes the connection a stream of bytes, from the next byte on in both directions, and
// returns it. It also implements [transport.Gatherer]. Closing the stream closes the connection, and
// the reverse. A read or write that ends by its deadline loses no bytes. The error is ErrClosed,
// ErrHandedOver if the connection is already a stream or a session, or the reason why the handshake
// failed.
func (c *tlsConn) Stream() (transport.Stream, error) {
	s, err := c.stream()
	if err != nil {
		return nil, err
	}
	c.socket.keepsRest = true
	return &tlsRawStream{tlsStream: s}, nil
}

// Multiplex makes the connection a session of streams, from the next byte on in both directions,
// and returns it. The session's reading goroutine polls the socket before it blocks, see
// [WithSpin]. If cfg.Quota is not nil, it is also charged for bytes that crypto/tls has read from
// the socket and from which it has not yet returned data. The error is ErrClosed, ErrHandedOver if
// the connection is already a stream or a session, the reason why the handshake failed, or means
// that cfg is invalid. After an invalid cfg the connection can only be closed.
func (c *tlsConn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	reader, err := wait.NewReader(c.tcp, c.waits)
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
