package uv

import (
	"bufio"
	"crypto/tls"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// recordSize is the most that a record holds. Small frames are gathered
	// up to it; the bulk of a large one is encrypted where it lies.
	recordSize = 16 << 10

	// farewell bounds how long Close and CloseWrite wait to tell the peer,
	// where the peer has stopped reading.
	farewell = 500 * time.Millisecond

	// cutOff is how long CloseWrite leaves to a write that is under way: one that has
	// room, and was only held up, must not end within a record.
	cutOff = farewell / 2
)

// tlsConn is a conn whose frames travel in TLS.
type tlsConn struct {
	*conn
	tls    *tls.Conn
	socket *socket       // below it
	name   string        // that the peer has proved; empty for who dialled us
	failed error         // why there is no TLS on it
	finish func()        // starts the end of writing, once
	ending chan struct{} // closed when that begins
	ended  chan error    // has what came of it

	writing sync.Mutex // held while the stream is written to
	broken  bool       // it ends within a record
	out     *bufio.Writer
	header  [frame.HeaderSize]byte
}

var _ transport.Secured = (*tlsConn)(nil)

// newTLSConn wraps either end of a socket; the handshake is to follow.
func newTLSConn(s *socket, secure *tls.Conn, spin time.Duration) *tlsConn {
	c := &tlsConn{
		conn:   newConnFrom(s.TCPConn, decrypted{secure, s}, spin),
		tls:    secure,
		socket: s,
		ending: make(chan struct{}),
		ended:  make(chan error, 1),
		out:    bufio.NewWriterSize(secure, recordSize),
	}
	c.finish = sync.OnceFunc(func() { go func() { c.ended <- c.endWriting() }() })
	return c
}

// usable is nil while there is a point in trying to read or write.
func (c *tlsConn) usable() error {
	if c.closed.Load() {
		return transport.ErrClosed
	}
	return c.failed
}

func (c *tlsConn) WriteFrames(frames ...transport.Frame) error {
	if err := c.usable(); err != nil {
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
	err := c.write(frames)
	c.broken = err != nil
	return c.writeError(err)
}

// write relies on out to keep its first error.
func (c *tlsConn) write(frames []transport.Frame) error {
	for _, f := range frames {
		c.out.Write(frame.AppendHeader(c.header[:0], frame.Size(f)))
		for _, p := range f {
			c.out.Write(p)
		}
	}
	return c.out.Flush()
}

func (c *tlsConn) NextFrame() (int64, error) {
	if err := c.usable(); err != nil {
		return 0, err
	}
	return c.conn.NextFrame()
}

func (c *tlsConn) ReadBody(dst ...[]byte) error {
	if err := c.usable(); err != nil {
		return err
	}
	return c.conn.ReadBody(dst...)
}

// writeError tells of what was wrong with the bytes that were read, where that
// is why nothing can be written.
func (c *tlsConn) writeError(err error) error {
	if alertBy(err) == ours {
		err = forged(err)
	}
	return c.conn.writeError(err)
}

// CloseWrite has something to send, unlike that of TCP. Where there is no room
// for it the sending goes on alone; Close ends it.
func (c *tlsConn) CloseWrite() error {
	c.finished.Store(true)
	c.finish()
	<-c.ending // the time is for the sending, not for a thread to begin it
	enough := time.NewTimer(farewell)
	defer enough.Stop()
	select {
	case err := <-c.ended:
		c.ended <- err // for the next call
		return err
	case <-enough.C:
		return nil
	}
}

// endWriting ends a blocked WriteFrames by a deadline. Then the stream ends
// within a record, to which nothing can be added.
func (c *tlsConn) endWriting() error {
	close(c.ending)
	if c.failed != nil {
		return c.failed
	}
	if !c.writing.TryLock() {
		c.tcp.SetWriteDeadline(c.lastMoment())
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

// lastMoment is when a write under way is to end: that of Close may lose bytes.
func (c *tlsConn) lastMoment() time.Time {
	if c.closed.Load() {
		return past
	}
	return time.Now().Add(cutOff)
}

// Close tells the peer first, like CloseWrite, which may be at it already: to
// close the socket under it would look like a cut to the peer.
func (c *tlsConn) Close() error {
	c.finished.Store(true)
	if c.closed.Swap(true) {
		return nil
	}
	_ = c.CloseWrite()
	return c.tcp.Close()
}

// ConnectionState implements [transport.Secured].
func (c *tlsConn) ConnectionState() (tls.ConnectionState, bool) {
	if c.failed != nil {
		return tls.ConnectionState{}, false
	}
	return c.tls.ConnectionState(), true
}
