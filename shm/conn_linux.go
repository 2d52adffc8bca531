package shm

import (
	"errors"
	"math"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ringsession"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// piece is the largest number of bytes that are copied before they are published, so that both ends
// copy at the same time.
const piece = 64 << 10

// conn is one end of a connection. It implements transport.Conn and, of the optional interfaces,
// Identified, FrameLimiter and Multiplexer.
type conn struct {
	local, remote       string
	peer                transport.Credentials
	socket              *net.UnixConn
	raw                 syscall.RawConn
	reactors            *reactors
	reactor             *reactor
	ownInbox, peerInbox memory
	doorbells           bool         // the peer sends and understands doorbells
	peerReactor         *peerReactor // nil if the peer sends doorbells
	inTrigger           uint32       // the trigger that the peer sends when it has written to ownInbox
	outTrigger          uint32       // the trigger that the peer sends when it has read from peerInbox

	handedOver     atomic.Bool    // Stream or Multiplex was called; set with in.mu and out.mu held
	closed         atomic.Bool    // Close was called
	writeClosed    atomic.Bool    // CloseWrite or Close was called
	peerFinished   atomic.Bool    // the peer writes no more
	peerGone       atomic.Bool    // the peer reads no more: it has closed or died
	closeWriteOnce sync.Once      // runs what CloseWrite does
	work           sync.WaitGroup // goroutines of the connection

	dialled  bool              // this end has dialled
	receiver *segment.Receiver // of receiveEvents, which reads into event
	event    [1]byte
	received chan receivedFile // the file of a session's segment
	prepared preparedSegment

	wait        wait.Config   // of a session
	sendTimeout time.Duration // for which a full socket may block a send
	switched    bool          // receiveEvents has received the peer's eventSession
	receiveDone chan struct{} // closed when receiveEvents returns
	session     atomic.Pointer[ringsession.Session]

	in            inbox
	out           outbox
	writeDoorbell func(fd uintptr) // sends a doorbell; a test replaces it
}

// newConn returns the connection of the completed handshake h, with local and remote as its
// addresses. It starts the goroutine receiveEvents and, for a C++ peer, the polling for triggers.
// The connection takes over the socket, the memory and the reactor of h, which Close releases.
// After an error h still owns them, and the caller calls h.abort.
func newConn(h *handshake, local, remote string) (*conn, error) {
	c := &conn{
		local: local, remote: remote, peer: h.peer,
		socket: h.socket, reactors: &h.transport.reactors, reactor: h.reactor,
		ownInbox: h.ownInbox, peerInbox: h.peerInbox, doorbells: h.doorbells(),
		inTrigger: h.greeting.inTrigger, outTrigger: h.greeting.outTrigger,
		writeDoorbell: func(fd uintptr) { writeDoorbell(fd, sendDoorbell) },
		wait:          h.transport.wait, sendTimeout: h.transport.handshakeTimeout,
		receiveDone: make(chan struct{}),
		dialled:     h.dialled, receiver: segment.NewReceiver(),
		received: make(chan receivedFile, 1),
	}
	var err error
	if c.raw, err = h.socket.SyscallConn(); err != nil {
		return nil, err
	}
	if err := c.claimRings(h); err != nil {
		return nil, err
	}
	if c.doorbells {
		h.peerReactorMemory.close()
	} else {
		c.peerReactor = newPeerReactor(h.peerReactorMemory, h.triggers, c.unreachable)
		c.reactor.startPolling(spinForTriggers(h.transport.wait), h.transport.pause)
	}
	c.work.Go(c.receiveEvents)
	return c, nil
}

// spinForTriggers returns how long the reactor polls without pause if calls wait as c determines. With busy polling
// it does so without end, but not in a process with one processor, where it would keep that from the sockets.
func spinForTriggers(c wait.Config) time.Duration {
	if c.Busy && runtime.GOMAXPROCS(0) > 1 {
		return math.MaxInt64
	}
	return c.Spin
}

// claimRings begins a read transaction on c's own inbox and a write transaction on the peer's
// inbox. Both last as long as the connection, so that other readers of the one and writers to the
// other get ring.ErrBusy. It then sets up c.in and c.out, which keep the wakeups of h. The error
// matches ErrProtocol: the peer is in one of these transactions itself, or has taken its memory
// away.
func (c *conn) claimRings(h *handshake) error {
	consumer := c.ownInbox.ring.Consumer()
	if err := consumer.Begin(); err != nil {
		return protocolError("%w", err)
	}
	producer := c.peerInbox.ring.Producer()
	if err := c.peerInbox.guard(producer.Begin); err != nil {
		return protocolError("%w", err)
	}
	spin := wait.NewMemoryPoller(h.transport.wait.Spin)
	c.in = inbox{conn: c, consumer: consumer}
	c.in.waiter = newWaiter(h.in, spin, readerBlocked, c.in.ready)
	c.out = outbox{conn: c, producer: producer, guarded: !c.peerInbox.sealed(), reserved: !c.doorbells}
	c.out.waiter = newWaiter(h.out, spin.Clone(), writerBlocked, c.out.ready)
	c.in.deadline.Wake, c.out.deadline.Wake = c.in.wakeup.wake, c.out.wakeup.wake
	c.out.framesFunc, c.out.piecesFunc = c.out.writeFramesUnguarded, c.out.writePiecesUnguarded
	if c.doorbells {
		c.in.marker, c.out.marker = c.ownInbox.marker(), c.peerInbox.marker()
	}
	return nil
}

func (c *conn) WriteFrames(frames ...transport.Frame) error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.handedOver.Load() {
		return ErrHandedOver
	}
	return c.failure("write", c.out.writeFrames(frames))
}

func (c *conn) NextFrame() (int64, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if c.handedOver.Load() {
		return 0, ErrHandedOver
	}
	n, err := c.in.nextFrame()
	return n, c.failure("read", err)
}

func (c *conn) ReadBody(dst ...[]byte) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if c.handedOver.Load() {
		return ErrHandedOver
	}
	return c.failure("read", c.in.readBody(dst))
}

// failure returns err, wrapped in an *Error with op ("read" or "write") and the peer's address, if
// err matches syscall.EPIPE, ErrProtocol, ring.ErrCorrupt or segment.ErrFault. With the last two
// the result also matches ErrProtocol. Any other err, such as io.EOF, and nil are returned
// unchanged.
func (c *conn) failure(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ring.ErrCorrupt), errors.Is(err, segment.ErrFault):
		return &Error{Op: op, Peer: c.remote, Err: protocolError("%w", err)}
	case errors.Is(err, ErrProtocol), errors.Is(err, syscall.EPIPE):
		return &Error{Op: op, Peer: c.remote, Err: err}
	}
	return err
}

// CloseWrite implements [transport.Conn]: it ends this end's writing. Blocked and later writes fail
// with ErrClosed. After the last byte the peer's reads return io.EOF, or io.ErrUnexpectedEOF within
// a frame. A peer of this package is notified by a flag in the ring, after a write in progress has
// returned. For a C++ peer, a goroutine closes the writing half of the socket once that peer has
// read everything; this also ends the other direction. CloseWrite returns nil, and further calls
// have no effect. After Stream or Multiplex it returns ErrHandedOver and does nothing.
func (c *conn) CloseWrite() error {
	if c.handedOver.Load() {
		return ErrHandedOver
	}
	c.closeWrite()
	return nil
}

// closeWrite ends this end's writing, as CloseWrite describes, also if the connection has become a
// stream. It may wait for a write in progress. Further calls have no effect.
func (c *conn) closeWrite() {
	c.writeClosed.Store(true)
	c.out.wakeup.wake()
	c.closeWriteOnce.Do(func() {
		if c.doorbells {
			c.out.mu.Lock() // waits for the current write; no other can follow
			defer c.out.mu.Unlock()
			if !c.closed.Load() {
				failpoint.Here()
				c.out.marker.Or(writerClosed)
				c.notify()
			}
			return
		}
		c.work.Go(c.out.closeWhenDrained)
	})
}

// unreachable reports whether the peer has closed or died, or Close was called here. Nothing need
// then be sent to the peer.
func (c *conn) unreachable() bool { return c.peerGone.Load() || c.closed.Load() }

// Close implements [transport.Conn]. It closes the socket, wakes blocked reads and writes, waits
// until they and the connection's goroutines have returned, and then releases the session through
// shared memory if there is one, the reactor and the memory. The error is that of closing the
// socket; with a session it is nil. Further calls return nil, possibly before the first has
// finished.
func (c *conn) Close() error {
	c.writeClosed.Store(true)
	if c.closed.Swap(true) {
		return nil
	}
	c.in.wakeup.wake()
	c.out.wakeup.wake()
	c.closeWriteOnce.Do(func() {}) // no CloseWrite begins after this
	c.in.mu.Lock()
	c.in.deadline.Stop()
	c.in.mu.Unlock()
	c.out.mu.Lock()
	c.out.deadline.Stop()
	c.out.mu.Unlock()
	failpoint.Here()
	err := c.socket.Close()
	c.work.Wait()
	if s := c.session.Load(); s != nil {
		err = s.Close()
	}
	select {
	case f := <-c.received: // no call of PrepareSession has received it
		f.close()
	default:
	}
	c.prepared.close()
	if !c.doorbells {
		c.reactor.stopPolling()
		c.peerReactor.close()
	}
	c.reactor.unregister(c.inTrigger)
	c.reactor.unregister(c.outTrigger)
	c.reactors.release(c.reactor)
	c.ownInbox.close()
	c.peerInbox.close()
	return err
}

func (c *conn) LocalAddr() string  { return c.local }
func (c *conn) RemoteAddr() string { return c.remote }

// PeerIdentity implements [transport.Identified]. It returns the ids of the peer's process, user
// and group, which the kernel recorded when the socket was connected. The caller owns the result.
// The error is nil.
func (c *conn) PeerIdentity() (transport.Identity, error) {
	peer := c.peer
	return transport.Identity{Process: &peer}, nil
}

// FrameLimits implements [transport.FrameLimiter]. Max is 2^32-1 bytes. MaxWhole is 0, no limit, if
// the peer is of this package. A C++ peer reads some frames in one piece, so its MaxWhole is the
// size of the ring less the four bytes of a frame's header.
func (c *conn) FrameLimits() transport.FrameLimits {
	limits := transport.FrameLimits{Max: largestFrame}
	if !c.doorbells {
		limits.MaxWhole = c.peerInbox.ring.Size() - headerSize
	}
	return limits
}

// notifyIfBlocked sends the peer a doorbell if the bit sleeps is set in marker, which is in the
// memory that both processes share. The peer sets that bit when its reader or its writer blocks.
// notifyIfBlocked clears it first, so that the peer gets at most one doorbell each time that it
// blocks.
func (c *conn) notifyIfBlocked(marker *atomic.Uint32, sleeps uint32) {
	if marker.Load()&sleeps != 0 && marker.And(^sleeps)&sleeps != 0 {
		c.notify()
	}
}

// notify sends the peer a doorbell with writeDoorbell, without waiting for space in the socket. It
// returns no error: if the connection has failed, receiveEvents finds the end of the socket.
func (c *conn) notify() { _ = c.raw.Control(c.writeDoorbell) }

// Stream implements [transport.Multiplexer]. It returns a stream that begins with the next byte in
// each ring, since the connection reads nothing ahead. Later calls that read or write frames return
// ErrHandedOver. Closing the stream closes the connection. The error is ErrClosed after Close, or
// ErrHandedOver if the connection has already become a stream or a session.
func (c *conn) Stream() (transport.Stream, error) { return c.handOver() }

// handOver makes the connection a stream of bytes, which it returns. It waits for reads and writes
// in progress. Later calls of WriteFrames, NextFrame, ReadBody and CloseWrite return ErrHandedOver. After Close
// handOver returns ErrClosed, and after an earlier handOver it returns ErrHandedOver.
func (c *conn) handOver() (*stream, error) {
	if c.closed.Load() {
		return nil, transport.ErrClosed
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.handedOver.Swap(true) {
		return nil, ErrHandedOver
	}
	return &stream{c}, nil
}

// stream implements transport.Stream and transport.Gatherer on a connection whose frames were given
// up (handOver). Closing the stream closes the connection.
type stream struct{ conn *conn }

var _ transport.Gatherer = (*stream)(nil)

func (s *stream) Read(p []byte) (int, error) {
	in := &s.conn.in
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	n, err := in.read(p)
	if err == nil {
		err = in.reportFreed()
	}
	if n > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil // the bytes were read before the deadline
	}
	return n, s.conn.failure("read", err)
}

func (s *stream) Write(p []byte) (int, error) {
	out := &s.conn.out
	out.mu.Lock()
	defer out.mu.Unlock()
	out.single[0] = p
	pieces := net.Buffers(out.single[:])
	n, err := out.writePieces(&pieces)
	out.single[0] = nil
	return n, s.conn.failure("write", err)
}

// TryWrite implements [transport.Stream]. It always writes nothing and returns 0 and nil, because
// this stream cannot be written without blocking.
func (s *stream) TryWrite(...[]byte) (int, error) { return 0, nil }

// WriteBuffers implements [transport.Gatherer]. It blocks until all pieces are in the ring. It
// removes the bytes written from pieces and returns their number, also if it fails, and keeps no
// reference to their memory. The error is that of writePieces, wrapped by failure.
func (s *stream) WriteBuffers(pieces *net.Buffers) (int64, error) {
	out := &s.conn.out
	out.mu.Lock()
	defer out.mu.Unlock()
	n, err := out.writePieces(pieces)
	return int64(n), s.conn.failure("write", err)
}

func (s *stream) CloseWrite() error {
	s.conn.closeWrite()
	return nil
}

func (s *stream) Close() error { return s.conn.Close() }

func (s *stream) LocalAddr() net.Addr  { return addr(s.conn.local) }
func (s *stream) RemoteAddr() net.Addr { return addr(s.conn.remote) }

func (s *stream) SetDeadline(t time.Time) error {
	s.conn.in.deadline.Set(t)
	s.conn.out.deadline.Set(t)
	return nil
}

func (s *stream) SetReadDeadline(t time.Time) error {
	s.conn.in.deadline.Set(t)
	return nil
}

func (s *stream) SetWriteDeadline(t time.Time) error {
	s.conn.out.deadline.Set(t)
	return nil
}

// addr is the address of one end of a stream.
type addr string

func (addr) Network() string  { return Name }
func (a addr) String() string { return string(a) }
