package simnet

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/chanmutex"
	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// readAhead is how many bytes a stream reads from the wrapped one before the rules decide which
// have arrived.
const readAhead = 64 << 10

// framedConn is a conn whose wrapped connection can become a stream, by which it implements
// [transport.Multiplexer].
type framedConn struct{ *conn }

// Stream implements [transport.Multiplexer]. It returns a stream over the connection c, to which
// the rules of the link apply: each Write counts as a frame without a header. c must not be used
// after that, unless Stream returns an error, which is that of the wrapped connection.
func (c framedConn) Stream() (transport.Stream, error) {
	inner, err := c.inner.(transport.Multiplexer).Stream()
	if err != nil {
		return nil, err
	}
	c.link.removeFraming(c.end, inner)
	return &stream{
		Stream:  inner,
		conn:    c.conn,
		writing: chanmutex.New(),
		reading: chanmutex.New(),
		at:      cursor{frameInfo: c.body, frame: c.frames - 1, read: c.body.header + c.read},
	}, nil
}

// PrepareSession implements [transport.Multiplexer]. It does nothing and returns nil, because
// Multiplex needs no preparation.
func (c framedConn) PrepareSession(transport.SessionConfig) error { return nil }

// Multiplex implements [transport.Multiplexer]. It returns a session of package mux over the stream
// of c. Each message of the session is one Write of that stream, and so counts as a frame. c must
// not be used after that.
func (c framedConn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.Stream()
	if err != nil {
		return nil, err
	}
	return mux.New(s, cfg)
}

// stream is one end of a link that carries bytes without frames. Reads and writes may be called
// concurrently.
type stream struct {
	transport.Stream
	conn *conn

	writing chanmutex.Mutex

	reading chanmutex.Mutex
	at      cursor
	buf     []byte
	ahead   []byte // in buf: read from the wrapped stream, not yet returned

	mu     sync.Mutex
	readBy time.Time
}

func (s *stream) Write(p []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	c := s.conn
	if c.isClosed() {
		return 0, transport.ErrClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	pass, thenEnd, err := c.link.admit(c.end, []transport.Frame{{p}})
	if err != nil {
		return 0, err
	}
	allowed := len(pass[0][0])
	n, err := s.Stream.Write(pass[0][0])
	if err != nil {
		c.link.unsend(c.end, int64(allowed-n))
		return n, s.writeFailed(err)
	}
	if thenEnd {
		s.Stream.CloseWrite()
	}
	if allowed < len(p) {
		return n, c.link.reset()
	}
	return n, nil
}

func (s *stream) writeFailed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return s.conn.writeFailed(err)
}

// TryWrite writes nothing and returns 0 and nil, so that all bytes are subject to the rules in Write.
func (s *stream) TryWrite(...[]byte) (int, error) { return 0, nil }

func (s *stream) Read(p []byte) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if err := s.fill(); err != nil {
		return 0, s.readFailed(err)
	}
	c := s.conn
	arrives, position := c.link.next(1-c.end, &s.at, int64(len(s.ahead)))
	if err := c.waitUntil(arrives, position, s.deadline); err != nil {
		return 0, err
	}
	n := c.link.take(1-c.end, &s.at, int64(min(len(p), len(s.ahead))))
	copy(p, s.ahead[:n])
	s.ahead = s.ahead[n:]
	return int(n), nil
}

// fill reads from the wrapped stream into s.ahead, and blocks until there are bytes. If s.ahead
// already has bytes it does nothing. The error is that of the wrapped stream; s.ahead is empty
// then. The caller holds s.reading.
func (s *stream) fill() error {
	if s.buf == nil {
		s.buf = make([]byte, readAhead)
	}
	for len(s.ahead) == 0 {
		n, err := s.Stream.Read(s.buf)
		s.ahead = s.buf[:n]
		if n == 0 && err != nil {
			return err
		}
	}
	return nil
}

func (s *stream) readFailed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return s.conn.readFailed(err, position{frame: s.at.frame + 1}, s.deadline)
}

func (s *stream) deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readBy
}

func (s *stream) CloseWrite() error {
	s.conn.link.finish(s.conn.end)
	return s.Stream.CloseWrite()
}

func (s *stream) Close() error { return s.conn.Close() }

func (s *stream) LocalAddr() net.Addr  { return s.Stream.LocalAddr() }
func (s *stream) RemoteAddr() net.Addr { return s.Stream.RemoteAddr() }

func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

func (s *stream) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	s.readBy = t
	s.mu.Unlock()
	s.conn.link.wakeReaders()
	return s.Stream.SetReadDeadline(t)
}

// cursor is the position of a reader in the bytes that the other end of the link wrote.
type cursor struct {
	frameInfo *frameInfo
	frame     int   // index of the frame
	read      int64 // bytes read of it, header included
}

// position returns the position that the reader will have after it has read more further bytes. A
// position within the header counts as the beginning of the body.
func (c *cursor) position(more int64) position {
	return position{frame: c.frame, offset: max(0, c.read+more-c.frameInfo.header)}
}

// next moves c, a position in the bytes that the end from has written, to the beginning of the next
// frame if c is at the end of one. It returns the time at which the byte after c arrives, and the
// position after that byte. If the next frame was not written through the network, its body has
// size bytes. It takes l.mu.
func (l *Link) next(from End, c *cursor, size int64) (arrives time.Time, at position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c.read >= c.frameInfo.wire() {
		*c = cursor{frameInfo: l.directions[from].receive(size), frame: c.frame + 1}
	}
	return c.frameInfo.arrives, c.position(1)
}

// take advances c, a position in the bytes that the end from has written, and returns by how many
// bytes: at most want, and not beyond the end of the frame or a position that is held back, but at
// least one. The caller must know that the first byte has arrived. It takes l.mu.
func (l *Link) take(from End, c *cursor, want int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(want, max(1, c.frameInfo.wire()-c.read))
	if held := l.directions[from].held; held != nil && c.position(n).after(*held) {
		n = max(1, held.offset-c.position(0).offset)
	}
	c.read += n
	return n
}
