// Package bulk moves host memory between the two ends of a pipe over one raw byte stream that carries
// nothing else. Large tensors then cost no more than the socket does, and small messages do not queue
// after them.
//
// A [Mover] is one end. Each [Mover.Lane] is a channel, and a transfer has an id on its lane. The
// transfers of all lanes take turns on the stream:
//
//	receiver                                  sender
//	Recv(id, dst)                             Send(id, src)
//	   -- READY(lane, id), on another way -->
//	<-- chunk: id, length, bytes, valid ----
//	<-- chunk of another transfer ----------
//	<-- chunk: id, length, bytes, valid ----
//	done                                      done
//
// The sender sends nothing before the receiver has supplied memory, unless the transfer is eager: it is
// then sent once the credit that the receiver has granted ([Mover.Grant], [Mover.SendEager]) suffices for it and those
// before it. The receiver reads each byte directly to its destination. It leaves the bytes of eager
// transfers in the stream until there is memory for them ([Mover.Expect]), and buffers them, which
// twice the credit bounds, only if they stay there for long or other transfers wait for later bytes.
// The trailer of a chunk states whether its bytes are valid. A sender that is aborted within a chunk
// releases its memory, pads the chunk with zeros, and marks it as discarded. A receiver that is
// aborted reads and drops the remaining bytes. Both happen at once, even while the other end is
// blocked: an expired deadline interrupts the system call.
//
// The stream is opened when the first transfer is ready for it. An idle Mover has no goroutine.
package bulk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Config holds what a Mover needs from its pipe. The Mover may call the functions on any goroutine.
type Config struct {
	// Open returns the stream, which the Mover then owns. It is called at most once, on a goroutine of
	// its own: at the first Recv, or when the first Send may move. It may block until ctx ends; closing
	// the Mover ends ctx.
	//
	// A read that a deadline has interrupted must not damage the stream: later reads continue where it
	// stopped. If the stream is a [transport.Gatherer] the Mover writes directly from the memory of
	// transfers; otherwise it copies the bytes first.
	Open func(ctx context.Context) (transport.Stream, error)

	// Ready sends the peer a READY for a transfer whose memory is available; the peer's pipe then calls
	// Mover.HandleReady. It must not block or call the Mover. It may be called from within Recv, so it
	// must not take a lock that callers of Recv hold.
	Ready func(lane uint16, id uint64)

	// Credit sends the peer a CREDIT of that many bytes; the peer's pipe then calls
	// Mover.HandleCredit. It must not block or call the Mover. It may be called from within Recv and
	// Abort. It is not needed by an end that never calls Grant.
	Credit func(bytes int)

	// Broken is called once, with the reason, when the Mover can move nothing more for a reason other
	// than Close: the stream could not be opened or failed (io.EOF if the peer ended it between two
	// chunks), or the peer broke the protocol. The error is a [*channel.Error]; transfers in progress
	// fail with it too. Broken must not block.
	Broken func(error)

	// Arrived, if not nil, is called with the number of bytes received since the last call. It must not
	// block.
	Arrived func(bytes int)

	// Checksum adds a CRC32C to each chunk that this end sends. The peer decides on its own whether to
	// add one.
	Checksum bool

	// Peer names the other end, for errors.
	Peer string
}

// Mover is one end of a bulk connection. All methods may be called concurrently.
type Mover struct {
	cfg       Config
	lifecycle *transfer.Lifecycle

	sending     sync.Mutex // held while checked.queue changes and the frame is sent that changes it at the peer
	mu          sync.Mutex
	opened      bool // Config.Open was called, or will be shortly
	ended       bool // no transfer may begin
	stream      transport.Stream
	lanes       map[uint16]*lane
	out, in     direction
	runnable    fifo.Queue[*transferOp] // sends whose bytes may be written, in turn
	first       *transferOp             // an eager send that precedes these, because it was begun
	credit      credit                  // granted by the peer
	checked     checkedCredit           // granted to the peer
	arrivals    map[transferKey]*arrival
	changed     chan struct{} // wakes the reader in awaitPlace
	endedOps    []completion  // memory of endTurn
	completions []completion  // calls of done for the goroutine of completeAsync
	completing  bool          // that goroutine is running
	wake        sync.Cond     // runnable has grown, or ended is set
	completed   sync.Cond     // a done function has returned
}

// New returns a Mover with that configuration, which it keeps. It starts no goroutine and opens
// nothing yet; the caller must close it.
func New(cfg Config) *Mover {
	if cfg.Arrived == nil {
		cfg.Arrived = func(int) {}
	}
	m := &Mover{cfg: cfg, changed: make(chan struct{}, 1)}
	m.wake.L, m.completed.L = &m.mu, &m.mu
	m.lifecycle = transfer.NewLifecycle(m.release, cfg.Broken)
	return m
}

// Lane returns the channel with number n, the same one in each call; the first call creates it. The
// channel keeps the contract of the native dialect and serves host memory. If a transfer fails at
// one end, the transfer of the other end may wait until it is aborted. Closing the channel ends its
// transfers permanently; other lanes are not affected.
func (m *Mover) Lane(n uint16) channel.Channel {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lanes[n]
	if l == nil {
		l = &lane{m: m, number: n}
		if m.lanes == nil {
			m.lanes = make(map[uint16]*lane)
		}
		m.lanes[n] = l
	}
	return l
}

// HandleReady records that the peer has memory for the Send with that id on that lane, which may
// then move. If there is no such Send, because it has ended, or READY has come before, the call is
// ignored. HandleReady does not block.
func (m *Mover) HandleReady(lane uint16, id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := transferKey{lane, id}
	m.stopWaiting(key)
	op := m.out.ops[key]
	if op == nil || op.peerReady {
		return
	}
	op.peerReady = true
	if op.memoryReady {
		m.queue(op)
	}
}

// Close ends all transfers with cause, or [channel.ErrClosed] if cause is nil, and closes the
// stream, whose error it returns. It returns after every done function has returned and all
// goroutines have ended; the caller must not hold a lock that a done function takes. If the Mover
// has already ended, Close waits for the same, returns the same error, and has no other effect.
func (m *Mover) Close(cause error) error { return m.lifecycle.Close(cause) }

// queue appends op, a Send whose memory is ready at both ends, to the transfers that take turns on
// the stream, and opens the stream if that was not begun. The caller holds mu.
func (m *Mover) queue(op *transferOp) {
	m.runnable.Push(op)
	m.wake.Signal()
	m.open()
}

// open starts a goroutine that opens the stream and moves transfers (serve). It does nothing if
// that was done before or the Mover has ended. The caller holds mu.
func (m *Mover) open() {
	if !m.opened && !m.ended {
		m.opened = true
		m.lifecycle.Go(m.serve)
	}
}

// serve opens the stream, starts the goroutine that writes, and reads until the stream fails. Then,
// or if the stream cannot be opened, it ends the Mover with the error. If the Mover has ended
// before the stream was open, it closes the stream.
func (m *Mover) serve() {
	stream, err := m.cfg.Open(m.lifecycle.Context())
	if err != nil {
		m.fail(err)
		return
	}
	w := &writer{m: m, stream: stream}
	w.gatherer, _ = stream.(transport.Gatherer)
	m.mu.Lock()
	ended := m.ended
	if !ended {
		m.stream = stream
		m.in.setDeadline = stream.SetReadDeadline
		if w.gatherer != nil {
			m.out.setDeadline = stream.SetWriteDeadline
		}
	}
	m.mu.Unlock()
	if ended {
		_ = stream.Close()
		return
	}
	m.lifecycle.Go(func() { m.fail(w.run()) })
	r := &reader{m: m, src: bufio.NewReaderSize(stream, readAhead)}
	r.stream, _ = stream.(transport.BulkReader)
	m.fail(r.run())
}

// fail ends the Mover with err, wrapped in a [*channel.Error]. A malformed chunk also matches
// channel.ErrProtocol, unless the checksum shows that its bytes were changed on the way. If the
// Mover has ended already fail does nothing.
func (m *Mover) fail(err error) {
	if _, ok := errors.AsType[*native.Error](err); ok && !errors.Is(err, ErrChecksum) {
		err = fmt.Errorf("%w: %w", channel.ErrProtocol, err)
	}
	m.lifecycle.Fail(m.wrapError(err))
}

// release closes the stream, whose error it returns, and completes all transfers except those whose
// memory the reader or the writer is using; these goroutines complete them when they have stopped.
// The lifecycle calls it once, when the Mover ends. The caller does not hold mu.
func (m *Mover) release() (err error) {
	m.mu.Lock()
	m.ended = true
	ops := m.cancelAll(nil, m.lifecycle.Err())
	m.arrivals, m.credit.queue, m.checked.queue = nil, creditQueue{}, creditQueue{}
	stream := m.stream
	m.wake.Broadcast()
	m.mu.Unlock()
	if stream != nil {
		err = stream.Close()
	}
	for _, op := range ops {
		m.complete(op, m.lifecycle.Err())
	}
	return err
}

// ErrChecksum matches the error of a Mover that received other bytes than the peer sent. Memory or a
// connection on the way is faulty; nothing received over this connection can be trusted. It is the same
// value as native.ErrChecksum.
var ErrChecksum = native.ErrChecksum

// ErrBusy matches the error of a Send or Recv whose id is in use in that direction of the lane. The
// caller assigned an id twice.
var ErrBusy = errors.New("a transfer with this id is under way")
