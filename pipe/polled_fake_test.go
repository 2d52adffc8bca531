package pipe_test

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// pollableTransport is a transport whose streams can be polled, like those over shared
// memory, but in virtual time and at a controlled pace.
type pollableTransport struct {
	transport.Transport
	throttle *throttle
}

// throttle controls how many bytes streams deliver at once, and blocks writes.
type throttle struct {
	mu      sync.Mutex // also of the streams
	changed *sync.Cond
	allowed int  // bytes that can be read until allow is called
	maxRead int  // bytes that one read returns at most
	hasRoom bool // the result of PollWritable
	polls   int  // calls of PollReadable that have not returned
	waits   int  // calls of Wait that have not returned

	onPoll func()      // called by PollReadable
	onRead func(n int) // called when n bytes of the message stream were read
	stops  int         // calls of Arm

	blocked       bool  // Write blocks
	blockedWrites int   // calls of Write that block
	writeErr      error // makes blocked calls of Write fail
}

func newThrottle(maxRead int) *throttle {
	t := &throttle{allowed: 1 << 40, maxRead: maxRead}
	t.changed = sync.NewCond(&t.mu)
	return t
}

// allow sets the number of further bytes that readers of the stream may get to n, and wakes blocked
// readers.
func (t *throttle) allow(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.allowed = n
	t.changed.Broadcast()
}

// setOnPoll sets the function that each call of PollReadable calls first, with the throttle locked;
// nil for none.
func (t *throttle) setOnPoll(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onPoll = f
}

// setOnRead sets the function that is called with the size of each read from the message stream;
// nil for none.
func (t *throttle) setOnRead(f func(n int)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onRead = f
}

// stopCount returns how often the pipe has called Arm, which it does when a goroutine stops
// polling.
func (t *throttle) stopCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stops
}

// awaitCalls blocks until exactly polls goroutines are in PollReadable and exactly waits goroutines
// are in Wait.
func (t *throttle) awaitCalls(polls, waits int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.polls != polls || t.waits != waits {
		t.changed.Wait()
	}
}

// blockWrites makes calls of Write block while on is true. If on is false, blocked calls continue.
func (t *throttle) blockWrites(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.blocked = on
	t.changed.Broadcast()
}

// failWrites makes blocked and further calls of Write return err.
func (t *throttle) failWrites(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writeErr = err
	t.changed.Broadcast()
}

// awaitBlocked blocks until exactly n calls of Write are blocked.
func (t *throttle) awaitBlocked(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.blockedWrites != n {
		t.changed.Wait()
	}
}

func (p pollableTransport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := p.Transport.Listen(ctx, addr)
	return polledListener{l, p.throttle}, err
}

func (p pollableTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := p.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return polledConn{c, c.(transport.Multiplexer), p.throttle}, nil
}

type polledListener struct {
	transport.Listener
	throttle *throttle
}

func (l polledListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return polledConn{c, c.(transport.Multiplexer), l.throttle}, nil
}

type polledConn struct {
	transport.Conn
	transport.Multiplexer
	throttle *throttle
}

func (c polledConn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.Multiplexer.Multiplex(cfg)
	if err != nil {
		return nil, err
	}
	return &polledSession{Session: s, throttle: c.throttle}, nil
}

type polledSession struct {
	transport.Session
	throttle *throttle

	mu      sync.Mutex
	streams []*polledStream
}

func (s *polledSession) Open() (transport.Stream, error) { return s.wrap(s.Session.Open()) }

func (s *polledSession) Accept(ctx context.Context) (transport.Stream, error) {
	return s.wrap(s.Session.Accept(ctx))
}

func (s *polledSession) wrap(st transport.Stream, err error) (transport.Stream, error) {
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	wrapped := &polledStream{Stream: st, throttle: s.throttle, messages: len(s.streams) == 0}
	s.streams = append(s.streams, wrapped)
	return wrapped, nil
}

func (s *polledSession) Close() error {
	err := s.Session.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.streams {
		st.update(func() { st.closed = true })
	}
	return err
}

var (
	_ transport.WritePoller = (*polledStream)(nil)
	_ transport.Gatherer    = (*polledStream)(nil)
)

// polledStream makes a stream pollable: a goroutine reads ahead from it.
type polledStream struct {
	transport.Stream
	throttle *throttle
	messages bool // the first stream, whose writes can be blocked
	start    sync.Once

	// Guarded by mu of the throttle.
	buffered []byte
	err      error
	polling  bool
	woken    bool
	closed   bool
	expired  bool // the write deadline has passed
}

func (s *polledStream) readAhead() {
	buf := make([]byte, 32<<10)
	for s.err == nil {
		s.awaitDrained()
		n, err := s.Stream.Read(buf)
		s.throttle.mu.Lock()
		s.buffered, s.err = append(s.buffered, buf[:n]...), err
		s.throttle.changed.Broadcast()
		s.throttle.mu.Unlock()
	}
}

// awaitDrained blocks until the pipe has taken all but 64 KiB of the bytes that were read ahead, or
// the stream is closed.
func (s *polledStream) awaitDrained() {
	s.throttle.mu.Lock()
	defer s.throttle.mu.Unlock()
	for len(s.buffered) > 64<<10 && !s.closed {
		s.throttle.changed.Wait()
	}
}

func (s *polledStream) TryRead(p []byte) (int, error) {
	s.start.Do(func() { go s.readAhead() })
	s.throttle.mu.Lock()
	defer s.throttle.mu.Unlock()
	n := min(len(p), len(s.buffered), s.throttle.allowed, s.throttle.maxRead)
	copy(p, s.buffered[:n])
	s.buffered = s.buffered[n:]
	s.throttle.allowed -= n
	if n == 0 {
		return 0, s.err
	}
	if s.messages && s.throttle.onRead != nil {
		s.throttle.onRead(n)
	}
	s.throttle.changed.Broadcast()
	return n, nil
}

func (s *polledStream) TryWrite(pieces ...[]byte) (n int, err error) {
	const room = 40 << 10 // like a ring
	s.throttle.mu.Lock()
	blocked, expired := s.blocked(), s.expired
	s.throttle.mu.Unlock()
	if expired {
		return 0, os.ErrDeadlineExceeded
	}
	if blocked {
		return 0, nil
	}
	for _, p := range pieces {
		p = p[:min(len(p), room-n)]
		k, err := s.Stream.Write(p)
		if n += k; err != nil || n == room {
			return n, err
		}
	}
	return n, nil
}

// Write waits until writes are not blocked and then writes p to the underlying stream. If the
// throttle fails writes, or the write deadline is in the past, it returns that error and writes
// nothing.
func (s *polledStream) Write(p []byte) (int, error) {
	if err := s.awaitRoom(); err != nil {
		return 0, err
	}
	return s.Stream.Write(p)
}

// WriteBuffers writes pieces in order, like Write.
func (s *polledStream) WriteBuffers(pieces *net.Buffers) (written int64, err error) {
	for err == nil && len(*pieces) > 0 {
		var n int
		n, err = s.Write((*pieces)[0])
		written += int64(n)
		if (*pieces)[0] = (*pieces)[0][n:]; err == nil {
			*pieces = (*pieces)[1:]
		}
	}
	return written, err
}

func (s *polledStream) blocked() bool { return s.messages && s.throttle.blocked && !s.closed }

func (s *polledStream) awaitRoom() error {
	s.throttle.mu.Lock()
	defer s.throttle.mu.Unlock()
	for s.blocked() && !s.expired && s.throttle.writeErr == nil {
		s.throttle.blockedWrites++
		s.throttle.changed.Broadcast()
		s.throttle.changed.Wait()
		s.throttle.blockedWrites--
	}
	if s.expired {
		return os.ErrDeadlineExceeded
	}
	if s.messages {
		return s.throttle.writeErr
	}
	return nil
}

// SetWriteDeadline makes blocked and further writes time out at once, whichever time t is, or, if t
// is zero, removes the deadline. It returns nil.
func (s *polledStream) SetWriteDeadline(t time.Time) error {
	s.update(func() { s.expired = !t.IsZero() })
	return nil
}

func (s *polledStream) PollWritable() bool { return s.throttle.hasRoom }

func (s *polledStream) ready() bool {
	return s.err != nil || s.throttle.allowed > 0 && len(s.buffered) > 0
}

func (s *polledStream) Wait() {
	s.throttle.mu.Lock()
	defer s.throttle.mu.Unlock()
	s.throttle.waits++
	s.throttle.changed.Broadcast()
	for !s.woken && s.err == nil && (s.polling || !s.ready()) {
		s.throttle.changed.Wait()
	}
	s.throttle.waits--
	s.woken = false
}

// Readable reports whether there are bytes to read.
func (s *polledStream) Readable() bool { return false }

// ExpectOthers does nothing: the streams do not share a reader.
func (s *polledStream) ExpectOthers() {}

// Interrupt has no effect.
func (s *polledStream) Interrupt() {}

// PollReadable blocks until the stream has bytes to read or an error, and reports true. If the
// throttle allows no more bytes, it reports false. It ignores its argument.
func (s *polledStream) PollReadable(bool) bool {
	s.throttle.mu.Lock()
	defer s.throttle.mu.Unlock()
	if s.throttle.onPoll != nil {
		s.throttle.onPoll()
	}
	s.polling = true
	s.throttle.polls++
	s.throttle.changed.Broadcast()
	for !s.ready() && s.throttle.allowed > 0 {
		s.throttle.changed.Wait()
	}
	s.throttle.polls--
	s.polling = s.ready()
	s.throttle.changed.Broadcast()
	return s.polling
}

func (s *polledStream) Arm() {
	s.update(func() { s.polling, s.throttle.stops = false, s.throttle.stops+1 })
}
func (s *polledStream) Wake() { s.update(func() { s.woken = true }) }

func (s *polledStream) update(change func()) {
	s.throttle.mu.Lock()
	defer s.throttle.mu.Unlock()
	change()
	s.throttle.changed.Broadcast()
}

// connectPolled opens a native pipe over mem whose streams can be polled and are controlled by
// throttle, and returns both ends.
func connectPolled(t *testing.T, throttle *throttle) (client, server *pipe.Pipe) {
	network := mem.NewNetwork()
	return connect(t, path{
		dialect: pipe.DialectNative,
		url:     "mem://",
		opts: func() pipe.Options {
			return pipe.Options{
				Dialect:    pipe.DialectNative,
				Transports: []pipe.TransportEntry{{Name: "mem", Transport: pollableTransport{mem.New(network), throttle}}},
				Channels:   []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}},
			}
		},
	})
}
