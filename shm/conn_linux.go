package shm

import (
	"errors"
	"net"
	"os"
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

	spin        time.Duration
	sendTimeout time.Duration // for which a full socket may block a send
	switched    bool          // receiveEvents has received the peer's eventSession
	receiveDone chan struct{} // closed when receiveEvents returns
	session     atomic.Pointer[ringsession.Session]

	in            inbox
	out           outbox
	writeDoorbell func(fd uintptr) // sends a doorbell; a test replaces it
}

// newConn returns the connection of the completed handshake h, with the addresses local and remote,
// and starts its goroutine receiveEvents. The connection takes over the resources of h, and Close
// releases them. After an error h still owns them, and the caller calls h.abort.
func newConn(h *handshake, local, remote string) (*conn, error) {
	c := &conn{
		local: local, remote: remote, peer: h.peer,
		socket: h.socket, reactors: &h.transport.reactors, reactor: h.reactor,
		ownInbox: h.ownInbox, peerInbox: h.peerInbox, doorbells: h.doorbells(),
		inTrigger: h.greeting.inTrigger, outTrigger: h.greeting.outTrigger,
		writeDoorbell: func(fd uintptr) { writeDoorbell(fd, sendDoorbell) },
		spin:          h.transport.spin, sendTimeout: h.transport.handshakeTimeout,
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
		c.reactor.startPolling(h.transport.spin, h.transport.pause)
	}
	c.work.Go(c.receiveEvents)
	return c, nil
}

// claimRings makes c the only reader of its own inbox and the only writer of the peer's, by
// transactions that last as long as the connection, and sets up c.in and c.out. The error matches
// ErrProtocol if the peer has taken either role or has taken its memory away.
func (c *conn) claimRings(h *handshake) error {
	consumer := c.ownInbox.ring.Consumer()
	if err := consumer.Begin(); err != nil {
		return protocolError("%w", err)
	}
	producer := c.peerInbox.ring.Producer()
	if err := c.peerInbox.guard(producer.Begin); err != nil {
		return protocolError("%w", err)
	}
	spin := wait.NewMemoryPoller(h.transport.spin)
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
	if c.out.handedOver {
		return ErrHandedOver
	}
	return c.failure("write", c.out.writeFrames(frames))
}

func (c *conn) NextFrame() (int64, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if c.in.handedOver {
		return 0, ErrHandedOver
	}
	n, err := c.in.nextFrame()
	return n, c.failure("read", err)
}

func (c *conn) ReadBody(dst ...[]byte) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if c.in.handedOver {
		return ErrHandedOver
	}
	return c.failure("read", c.in.readBody(dst))
}

// failure returns err as an *Error with op ("read" or "write") and the peer's address if err means
// that the peer broke the protocol or is gone. Any other error, and nil, are returned unchanged.
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

// CloseWrite implements [transport.Conn] and returns nil. A peer with doorbells is notified by a
// flag in the ring, after the current write has returned. A C++ peer is notified by the end of the
// socket, which ends both directions there; so a goroutine closes the socket's writing half once
// the peer has read everything.
func (c *conn) CloseWrite() error {
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
	return nil
}

// unreachable reports whether nothing need be sent to the peer any more: it has closed or died, or
// Close was called here.
func (c *conn) unreachable() bool { return c.peerGone.Load() || c.closed.Load() }

// Close implements [transport.Conn]. It wakes blocked calls, waits until they and the connection's
// goroutines have returned, and then releases the memory, the reactor and the session if there is
// one. Further calls return nil, possibly before the first has finished.
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

// PeerIdentity implements [transport.Identified]. It returns the process and the user that the
// kernel recorded when the socket was connected. The error is nil.
func (c *conn) PeerIdentity() (transport.Identity, error) {
	peer := c.peer
	return transport.Identity{Process: &peer}, nil
}

// FrameLimits implements [transport.FrameLimiter]. A frame has at most 2^32-1 bytes. A peer with
// doorbells reads frames of any size. For a C++ peer a frame that it reads in one piece and its
// header must fit into the ring.
func (c *conn) FrameLimits() transport.FrameLimits {
	limits := transport.FrameLimits{Max: largestFrame}
	if !c.doorbells {
		limits.MaxWhole = c.peerInbox.ring.Size() - headerSize
	}
	return limits
}

// notifyIfBlocked sends a doorbell if the peer has set the bit sleeps in marker, which shows that
// its reader or its writer is blocked. It clears the bit, so that the peer gets one doorbell each
// time that it blocks.
func (c *conn) notifyIfBlocked(marker *atomic.Uint32, sleeps uint32) {
	if marker.Load()&sleeps != 0 && marker.And(^sleeps)&sleeps != 0 {
		c.notify()
	}
}

// notify sends a doorbell. It returns no error: if sending fails the peer is gone, which
// receiveEvents detects.
func (c *conn) notify() { _ = c.raw.Control(c.writeDoorbell) }

// Stream implements [transport.Multiplexer]. The connection reads nothing ahead, so the stream
// begins with the next byte in the ring. The error is ErrClosed after Close, or ErrHandedOver if
// the connection has already become a stream or a session.
func (c *conn) Stream() (transport.Stream, error) { return c.handOver() }

// handOver returns a stream of the connection's bytes. It waits for calls in progress; later calls
// of WriteFrames, NextFrame and ReadBody return ErrHandedOver, and so does a second handOver. After
// Close it returns ErrClosed.
func (c *conn) handOver() (*stream, error) {
	if c.closed.Load() {
		return nil, transport.ErrClosed
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.in.handedOver {
		return nil, ErrHandedOver
	}
	c.in.handedOver, c.out.handedOver = true, true
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

// TryWrite implements [transport.Stream]. It writes nothing and returns 0 and nil.
func (s *stream) TryWrite(...[]byte) (int, error) { return 0, nil }

// WriteBuffers implements [transport.Gatherer]: it blocks until all pieces are in the ring.
func (s *stream) WriteBuffers(pieces *net.Buffers) (int64, error) {
	out := &s.conn.out
	out.mu.Lock()
	defer out.mu.Unlock()
	n, err := out.writePieces(pieces)
	return int64(n), s.conn.failure("write", err)
}

func (s *stream) CloseWrite() error { return s.conn.CloseWrite() }
func (s *stream) Close() error      { return s.conn.Close() }

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
