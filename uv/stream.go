package uv

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Stream implements [transport.Streamer]. The stream is a
// [transport.Gatherer].
func (c *conn) Stream() (transport.Stream, error) {
	before, err := c.giveUpFraming()
	if err != nil {
		return nil, err
	}
	return newStream(c, before, c.tcp), nil
}

// Multiplex implements [transport.Multiplexer]. The session spins, see
// [WithSpin].
func (c *conn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	fast, err := wait.NewReader(c.tcp, c.spin)
	if err != nil {
		return nil, err
	}
	now, err := wait.NewWriter(c.tcp)
	if err != nil {
		return nil, err
	}
	before, err := c.giveUpFraming()
	if err != nil {
		return nil, err
	}
	return mux.New(&promptStream{newStream(c, before, fast), now}, cfg)
}

func newStream(c *conn, before *bytes.Reader, socket io.Reader) *stream {
	return &stream{end{conn: c, source: source{before: before, socket: socket}}}
}

// giveUpFraming returns what was read ahead, nil for nothing, and lets go of
// the buffers that framing needs: there are many connections, most of them
// idle.
func (c *conn) giveUpFraming() (*bytes.Reader, error) {
	if c.closed.Load() {
		return nil, transport.ErrClosed
	}
	if c.src == nil {
		return nil, ErrHandedOver
	}
	before, err := drain(c.src)
	c.src, c.frames, c.batch = nil, nil, batch{}
	return before, err
}

// drain returns the bytes that src has ready.
func drain(src *bufio.Reader) (*bytes.Reader, error) {
	if src.Buffered() == 0 {
		return nil, nil
	}
	before := make([]byte, src.Buffered())
	_, err := io.ReadFull(src, before)
	return bytes.NewReader(before), err
}

// source is the reading half of a stream. Several goroutines may read.
type source struct {
	turn   sync.Mutex
	before *bytes.Reader // what was read ahead; nil when that is over
	socket io.Reader
}

func (s *source) Read(p []byte) (int, error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	if s.before != nil && len(p) > 0 {
		n, _ := s.before.Read(p)
		if s.before.Len() == 0 {
			s.before = nil
		}
		return n, nil
	}
	return s.socket.Read(p)
}

// end is what streams with and without TLS have in common. Deadlines are those
// of the socket.
type end struct {
	conn   *conn
	source source
}

func (e *end) Read(p []byte) (int, error) {
	if e.conn.closed.Load() {
		return 0, transport.ErrClosed
	}
	n, err := e.source.Read(p)
	step.Here()
	return n, e.conn.readError(err)
}

func (e *end) LocalAddr() net.Addr                { return e.conn.tcp.LocalAddr() }
func (e *end) RemoteAddr() net.Addr               { return e.conn.tcp.RemoteAddr() }
func (e *end) SetDeadline(t time.Time) error      { return e.conn.tcp.SetDeadline(t) }
func (e *end) SetReadDeadline(t time.Time) error  { return e.conn.tcp.SetReadDeadline(t) }
func (e *end) SetWriteDeadline(t time.Time) error { return e.conn.tcp.SetWriteDeadline(t) }

// stream is a conn without its framing.
type stream struct{ end }

var _ transport.Gatherer = (*stream)(nil)

func (s *stream) Write(p []byte) (int, error) {
	step.Here()
	n, err := s.conn.tcp.Write(p)
	return n, s.conn.writeError(err)
}

// WriteBuffers implements [transport.Gatherer].
func (s *stream) WriteBuffers(pieces *net.Buffers) (int64, error) {
	step.Here()
	n, err := pieces.WriteTo(s.conn.tcp)
	return n, s.conn.writeError(err)
}

// promptStream is a stream that can be written without waiting.
type promptStream struct {
	*stream
	now *wait.Writer
}

// TryWrite writes what the connection takes at once. It is not for two goroutines at a
// time.
func (s *promptStream) TryWrite(p []byte) (int, error) {
	step.Here()
	n, err := s.now.TryWrite(p)
	return n, s.conn.writeError(err)
}

func (s *stream) CloseWrite() error { return s.conn.CloseWrite() }
func (s *stream) Close() error      { return s.conn.Close() }
