package pipe_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// polled is a transport whose streams can be polled, as those over shared memory
// can, but in virtual time and at any pace: what comes shows bit by bit.
type polled struct {
	transport.Transport
	tap *tap
}

// tap says how much of the streams shows at once.
type tap struct {
	mu    sync.Mutex // of the streams, too
	moved *sync.Cond // something is different
	left  int        // bytes until the tap is shut
	piece int
	roomy bool // what is written is taken in, so that much is
	looks int  // calls of Look under way
	waits int  // and of Await

	onLook func()      // what happens when Look is called
	onRead func(n int) // and when so many bytes were read from the messages
	minds  int         // calls of Mind

	jammed  bool  // Write waits
	blocked int   // calls of it that do
	broken  error // and how it fails then
}

func newTap(piece int) *tap {
	t := &tap{left: 1 << 40, piece: piece}
	t.moved = sync.NewCond(&t.mu)
	return t
}

// set shuts the tap after n more bytes.
func (t *tap) set(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left = n
	t.moved.Broadcast()
}

// whenLooked has f done whenever somebody looks.
func (t *tap) whenLooked(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onLook = f
}

// whenRead has f called with the size of what is read from the messages.
func (t *tap) whenRead(f func(n int)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onRead = f
}

// minded is how often somebody stopped looking so far.
func (t *tap) minded() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.minds
}

// await waits until so many calls of Look and Await are under way.
func (t *tap) await(looks, waits int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.looks != looks || t.waits != waits {
		t.moved.Wait()
	}
}

// jam makes calls of Write wait, or lets them go on.
func (t *tap) jam(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.jammed = on
	t.moved.Broadcast()
}

// breakOff makes calls of Write fail.
func (t *tap) breakOff(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = err
	t.moved.Broadcast()
}

// awaitBlocked waits until so many calls of Write wait.
func (t *tap) awaitBlocked(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.blocked != n {
		t.moved.Wait()
	}
}

func (p polled) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := p.Transport.Listen(ctx, addr)
	return polledListener{l, p.tap}, err
}

func (p polled) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := p.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return polledConn{c, p.tap}, nil
}

type polledListener struct {
	transport.Listener
	tap *tap
}

func (l polledListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return polledConn{c, l.tap}, nil
}

type polledConn struct {
	transport.Conn
	tap *tap
}

func (c polledConn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.Conn.(transport.Multiplexer).Multiplex(cfg)
	if err != nil {
		return nil, err
	}
	return &polledSession{Session: s, tap: c.tap}, nil
}

func (c polledConn) Stream() (transport.Stream, error) { return c.Conn.(transport.Streamer).Stream() }

type polledSession struct {
	transport.Session
	tap *tap

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
	wrapped := &polledStream{Stream: st, tap: s.tap, messages: len(s.streams) == 0}
	s.streams = append(s.streams, wrapped)
	return wrapped, nil
}

func (s *polledSession) Close() error {
	err := s.Session.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.streams {
		st.tell(func() { st.closed = true })
	}
	return err
}

// polledStream makes a Poller of a stream, from which a goroutine reads ahead.
type polledStream struct {
	transport.Stream
	tap      *tap
	messages bool // the first stream, which a jam stops
	start    sync.Once

	// The following are guarded by tap.mu.
	has     []byte
	err     error
	looking bool
	woken   bool
	closed  bool
	late    bool // the deadline for writing has passed
}

func (s *polledStream) pump() {
	buf := make([]byte, 32<<10)
	for s.err == nil {
		s.awaitCalm()
		n, err := s.Stream.Read(buf)
		s.tap.mu.Lock()
		s.has, s.err = append(s.has, buf[:n]...), err
		s.tap.moved.Broadcast()
		s.tap.mu.Unlock()
	}
}

// awaitCalm waits until little is there that was not read.
func (s *polledStream) awaitCalm() {
	s.tap.mu.Lock()
	defer s.tap.mu.Unlock()
	for len(s.has) > 64<<10 && !s.closed {
		s.tap.moved.Wait()
	}
}

func (s *polledStream) TryRead(p []byte) (int, error) {
	s.start.Do(func() { go s.pump() })
	s.tap.mu.Lock()
	defer s.tap.mu.Unlock()
	n := min(len(p), len(s.has), s.tap.left, s.tap.piece)
	copy(p, s.has[:n])
	s.has = s.has[n:]
	s.tap.left -= n
	if n == 0 {
		return 0, s.err // also where the tap was shut before all had come
	}
	if s.messages && s.tap.onRead != nil {
		s.tap.onRead(n)
	}
	s.tap.moved.Broadcast()
	return n, nil
}

func (s *polledStream) TryWrite(pieces ...[]byte) (n int, err error) {
	const room = 40 << 10 // like that of a ring
	s.tap.mu.Lock()
	jammed, late := s.jammed(), s.late
	s.tap.mu.Unlock()
	if late {
		return 0, os.ErrDeadlineExceeded
	}
	if jammed {
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

// Write waits while the tap is jammed. Only what is after that goes to the stream
// beneath.
func (s *polledStream) Write(p []byte) (int, error) {
	if err := s.awaitRoom(); err != nil {
		return 0, err
	}
	return s.Stream.Write(p)
}

func (s *polledStream) jammed() bool { return s.messages && s.tap.jammed && !s.closed }

func (s *polledStream) awaitRoom() error {
	s.tap.mu.Lock()
	defer s.tap.mu.Unlock()
	for s.jammed() && !s.late && s.tap.broken == nil {
		s.tap.blocked++
		s.tap.moved.Broadcast()
		s.tap.moved.Wait()
		s.tap.blocked--
	}
	if s.late {
		return os.ErrDeadlineExceeded
	}
	if s.messages {
		return s.tap.broken
	}
	return nil
}

// SetWriteDeadline knows the past and no deadline.
func (s *polledStream) SetWriteDeadline(t time.Time) error {
	s.tell(func() { s.late = !t.IsZero() })
	return nil
}

func (s *polledStream) Room() bool { return s.tap.roomy }

func (s *polledStream) there() bool { return s.err != nil || s.tap.left > 0 && len(s.has) > 0 }

func (s *polledStream) Await() {
	s.tap.mu.Lock()
	defer s.tap.mu.Unlock()
	s.tap.waits++
	s.tap.moved.Broadcast()
	for !s.woken && s.err == nil && (s.looking || !s.there()) {
		s.tap.moved.Wait()
	}
	s.tap.waits--
	s.woken = false
}

// Look waits for something as long as the tap is open.
func (s *polledStream) LookDue() bool { return s.Look() }

func (s *polledStream) Look() bool {
	s.tap.mu.Lock()
	defer s.tap.mu.Unlock()
	if s.tap.onLook != nil {
		s.tap.onLook()
	}
	s.looking = true
	s.tap.looks++
	s.tap.moved.Broadcast()
	for !s.there() && s.tap.left > 0 {
		s.tap.moved.Wait()
	}
	s.tap.looks--
	s.looking = s.there()
	s.tap.moved.Broadcast()
	return s.looking
}

func (s *polledStream) Mind() { s.tell(func() { s.looking, s.tap.minds = false, s.tap.minds+1 }) }
func (s *polledStream) Wake() { s.tell(func() { s.woken = true }) }

func (s *polledStream) tell(change func()) {
	s.tap.mu.Lock()
	defer s.tap.mu.Unlock()
	change()
	s.tap.moved.Broadcast()
}

// connectPolled opens a pipe whose message streams are polled through the tap.
func connectPolled(t *testing.T, tap *tap) (client, server *pipe.Pipe) {
	network := mem.NewNetwork()
	return connect(t, path{
		dialect: pipe.DialectNative,
		url:     "mem://",
		opts: func() pipe.Options {
			return pipe.Options{
				Dialect:    pipe.DialectNative,
				Transports: []pipe.TransportEntry{{Name: "mem", Transport: polled{mem.New(network), tap}}},
				Channels:   []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}},
			}
		},
	})
}
