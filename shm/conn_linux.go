package shm

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// piece is how many bytes are moved at most before the peer hears of them, so
// that both ends copy at the same time.
const piece = 64 << 10

// conn is one end of a connection.
type conn struct {
	local, remote string
	peer          transport.Identity
	socket        *net.UnixConn
	raw           syscall.RawConn
	reactors      *reactors
	reactor       *reactor
	mine, theirs  memory
	rings         bool       // the peer rings doorbells, and can be rung
	letters       *letterbox // nil with a peer that rings
	inToken       uint32     // of this end, as outToken
	outToken      uint32

	closed   atomic.Bool    // Close was called
	finished atomic.Bool    // CloseWrite or Close was called
	ended    atomic.Bool    // the peer writes no more
	gone     atomic.Bool    // the peer reads no more
	hush     sync.Once      // of CloseWrite
	work     sync.WaitGroup // goroutines

	dialled  bool              // by this end
	receiver *segment.Receiver // of attend, as heard
	heard    [1]byte
	passed   chan passedFile // by the peer, for a session
	prepared preparation

	spin    time.Duration
	hearing time.Duration // that a peer may take to make room for a byte
	parted  bool          // attend has heard that the peer changed over to a session
	left    chan struct{} // closed when attend is over
	session atomic.Pointer[ringnet.Session]

	in    inbox
	out   outbox
	press func(fd uintptr) // rings the peer's doorbell
}

// newConn takes over what h has opened, unless it fails.
func newConn(h *handshake, local, remote string) (*conn, error) {
	c := &conn{
		local: local, remote: remote, peer: h.peer,
		socket: h.socket, reactors: &h.transport.reactors, reactor: h.reactor,
		mine: h.mine, theirs: h.theirs, rings: h.rings(),
		inToken: h.greeting.inToken, outToken: h.greeting.outToken,
		press: pressDoorbell,
		spin:  h.transport.spin, hearing: h.transport.patience,
		left:    make(chan struct{}),
		dialled: h.dialled, receiver: segment.NewReceiver(),
		passed: make(chan passedFile, 1),
	}
	var err error
	if c.raw, err = h.socket.SyscallConn(); err != nil {
		return nil, err
	}
	if err := c.takeRoles(h); err != nil {
		return nil, err
	}
	if c.rings {
		h.posts.close()
	} else {
		c.letters = newLetterbox(h.posts, h.tokens, c.alone)
		c.reactor.watch(h.transport.spin, h.transport.pause)
	}
	c.work.Go(c.attend)
	return c, nil
}

// takeRoles takes those of the two rings that are this end's, for good.
func (c *conn) takeRoles(h *handshake) error {
	consumer := c.mine.ring.Consumer()
	if err := consumer.Begin(); err != nil {
		return protocolError("%w", err)
	}
	producer := c.theirs.ring.Producer()
	if err := c.theirs.guard(producer.Begin); err != nil {
		return protocolError("%w", err)
	}
	spin := wait.NewMemory(h.transport.spin)
	c.in = inbox{conn: c, from: consumer}
	c.in.waiter = newWaiter(h.in, spin, readerSleeps, c.in.ready)
	c.out = outbox{conn: c, to: producer, guarded: !c.theirs.sealed(), complete: !c.rings}
	c.out.waiter = newWaiter(h.out, spin.Sibling(), writerSleeps, c.out.ready)
	c.out.pass, c.out.raw = c.out.passFrames, c.out.passPieces
	if c.rings {
		c.in.word, c.out.word = c.mine.word(), c.theirs.word()
	}
	return nil
}

func (c *conn) WriteFrames(frames ...transport.Frame) error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.out.handed {
		return ErrHandedOver
	}
	return c.failure("write", c.out.writeFrames(frames))
}

func (c *conn) NextFrame() (int64, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if c.in.handed {
		return 0, ErrHandedOver
	}
	n, err := c.in.nextFrame()
	return n, c.failure("read", err)
}

func (c *conn) ReadBody(dst ...[]byte) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if c.in.handed {
		return ErrHandedOver
	}
	return c.failure("read", c.in.readBody(dst))
}

// failure names the peer where it is to blame, or is gone.
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

// CloseWrite tells a C++ peer as soon as that has taken all from the ring: to it,
// it is the end of everything.
func (c *conn) CloseWrite() error {
	c.finished.Store(true)
	c.out.bell.ring()
	c.hush.Do(func() {
		if c.rings {
			c.out.end()
			return
		}
		c.work.Go(c.out.linger)
	})
	return nil
}

// alone reports whether nobody is left to be told anything.
func (c *conn) alone() bool { return c.gone.Load() || c.closed.Load() }

// Close makes all calls return, and then lets go of the memory.
func (c *conn) Close() error {
	c.finished.Store(true)
	if c.closed.Swap(true) {
		return nil
	}
	c.in.bell.ring()
	c.out.bell.ring()
	c.hush.Do(func() {}) // no CloseWrite begins any more
	c.in.mu.Lock()
	c.in.deadline.stop()
	c.in.mu.Unlock()
	c.out.mu.Lock()
	c.out.deadline.stop()
	c.out.mu.Unlock()
	step.Here()
	err := c.socket.Close()
	c.work.Wait()
	if s := c.session.Load(); s != nil {
		err = s.Close()
	}
	c.release()
	return err
}

func (c *conn) release() {
	c.closePassed()
	c.prepared.close()
	if !c.rings {
		c.reactor.unwatch()
		c.letters.close()
	}
	c.reactor.unregister(c.inToken)
	c.reactor.unregister(c.outToken)
	c.reactors.release(c.reactor)
	c.mine.close()
	c.theirs.close()
}

func (c *conn) LocalAddr() string  { return c.local }
func (c *conn) RemoteAddr() string { return c.remote }

// PeerIdentity implements [transport.Identified].
func (c *conn) PeerIdentity() (transport.Identity, error) { return c.peer, nil }

// LargestWhole implements [transport.Whole]. Peers that ring read piece by piece.
func (c *conn) LargestWhole() int {
	if c.rings {
		return 0
	}
	return c.theirs.ring.Size() - headerSize
}

// LargestFrame implements [transport.Bounded].
func (c *conn) LargestFrame() int64 { return largestFrame }

// wake rings the peer's doorbell if the half of it that is meant sleeps.
func (c *conn) wake(word *atomic.Uint32, sleeps uint32) {
	if word.Load()&sleeps != 0 && word.And(^sleeps)&sleeps != 0 {
		c.ringDoorbell()
	}
}

// ringDoorbell fails where the peer is gone, of which attend hears.
func (c *conn) ringDoorbell() { _ = c.raw.Control(c.press) }
