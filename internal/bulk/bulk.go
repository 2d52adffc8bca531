// Package bulk moves host memory between the two ends of a pipe over one raw
// stream of bytes that nothing else shares, so that large tensors cost what the
// socket costs, and small messages do not wait behind them.
//
// A [Mover] is one end. A transfer has an id on a lane; each [Mover.Lane] is a
// channel, and the lanes take turns on the stream:
//
//	receiver                                  sender
//	Recv(id, dst)                             Send(id, src)
//	   -- READY(lane, id), on another way -->
//	<-- chunk: id, length, bytes, valid ----
//	<-- chunk of another transfer ----------
//	<-- chunk: id, length, bytes, valid ----
//	done                                      done
//
// Nothing is sent before its memory waits, so the receiver reads each byte to
// where it belongs and holds none back. Each chunk ends with a word on whether
// it counts: a sender that is told to give up within a chunk lets go of its
// memory, fills the chunk with zeros, and calls it void. A receiver that gives
// up throws the rest away. Either happens at once, also while the other end is
// stuck, by a deadline that interrupts the system call.
//
// The stream is opened when the first transfer is ready for it; a Mover that is
// idle has no goroutine.
package bulk

import (
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

// Config is what a Mover needs from its pipe. All functions may be called from
// any goroutine.
type Config struct {
	// Open returns the stream, of which the Mover becomes the owner. It is
	// called at most once, on a goroutine of its own: at the first Recv, or when
	// the first Send may move. It may block until ctx ends, which it does when
	// the Mover is closed.
	//
	// Reading from the stream must go on after a deadline as if nothing had
	// been. A [transport.Gatherer] is written to from the memory of transfers;
	// for any other stream the bytes are copied first.
	Open func(ctx context.Context) (transport.Stream, error)

	// Ready tells the peer that memory waits for a transfer; the peer's
	// Mover.TakeReady is to be told. It does not block and calls nothing of
	// the Mover. It may be called from within Recv, and so takes no lock that
	// a caller of Recv holds.
	Ready func(lane uint16, id uint64)

	// Broken is told once why nothing can be moved any more, unless that is
	// due to Close: the stream could not be opened, or broke (io.EOF where the
	// peer ended it between two chunks), or the peer broke the protocol. The
	// error is a [*channel.Error]. Transfers under way get it too. It does not
	// block.
	Broken func(error)

	// Arrived is called with the number of bytes received since the last call. It does
	// not block. It may be nil.
	Arrived func(bytes int)

	// Checksum adds a CRC32C to each chunk that this end sends. Whether the
	// peer adds one is the peer's choice.
	Checksum bool

	// Peer names the other end, for errors.
	Peer string
}

// Mover is one end of a bulk connection. All methods may be called
// concurrently.
type Mover struct {
	cfg  Config
	life *transfer.Life

	mu      sync.Mutex
	opened  bool // Config.Open was called, or is about to be
	ended   bool // nothing begins any more
	stream  transport.Stream
	lanes   map[uint16]*lane
	out, in side
	turns   fifo.Queue[*job] // of out: those that may move
	endings []ending         // to be told by finishAll
	ending  bool             // it runs
	work    sync.Cond        // turns has grown, or the end has come
	settled sync.Cond        // a done has returned
}

// New returns a Mover. It starts nothing; the caller must close it.
func New(cfg Config) *Mover {
	if cfg.Arrived == nil {
		cfg.Arrived = func(int) {}
	}
	m := &Mover{cfg: cfg}
	m.work.L, m.settled.L = &m.mu, &m.mu
	m.life = transfer.NewLife(m.release, cfg.Broken)
	return m
}

// Lane returns the channel of that number, in the contract of the native dialect.
// It serves host memory. A transfer that fails at one end leaves the other end's
// waiting for an Abort. Closing the channel ends its transfers, for good, and
// leaves other lanes alone.
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

// TakeReady takes in that the peer's memory waits for a transfer. One that is
// not under way was aborted, and is ignored: a peer learns of a transfer after
// Send was called. TakeReady does not block.
func (m *Mover) TakeReady(lane uint16, id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j := m.out.jobs[label{lane, id}]
	if j == nil || j.ready {
		return
	}
	j.ready = true
	if j.ordered {
		m.queue(j)
	}
}

// Close ends all transfers with cause, nil standing for
// [channel.ErrClosed], and closes the stream. It returns when every done has
// been called and nothing runs any more; the caller must not hold a lock that
// done takes. Closing again waits for the same and does nothing else.
func (m *Mover) Close(cause error) error { return m.life.Close(cause) }

// queue lets j take its turns on the stream. The caller holds mu.
func (m *Mover) queue(j *job) {
	m.turns.Push(j)
	m.work.Signal()
	m.open()
}

// open has the stream opened if that has not been done. The caller holds mu.
func (m *Mover) open() {
	if !m.opened && !m.ended {
		m.opened = true
		m.life.Go(m.serve)
	}
}

// serve opens the stream and works on it until the end.
func (m *Mover) serve() {
	stream, err := m.cfg.Open(m.life.Context())
	if err != nil {
		m.fail(err)
		return
	}
	if !m.adopt(stream) {
		_ = stream.Close()
		return
	}
	m.life.Go(func() { m.fail(newWriter(m, stream).run()) })
	m.fail(newReader(m, stream).run())
}

// adopt makes stream that of m, unless the end came while it was opened.
func (m *Mover) adopt(stream transport.Stream) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		m.stream = stream
	}
	return !m.ended
}

// fail ends everything because of err. What is wrong with a chunk is the
// peer's doing, unless its bytes were changed on their way.
func (m *Mover) fail(err error) {
	if _, ok := errors.AsType[*native.Error](err); ok && !errors.Is(err, ErrChecksum) {
		err = fmt.Errorf("%w: %w", channel.ErrProtocol, err)
	}
	m.life.Fail(m.explain(err))
}

// release lets go of everything at the end. What the reader or the writer is at
// they finish themselves, for they may still touch its memory.
func (m *Mover) release() (err error) {
	m.mu.Lock()
	m.ended = true
	left := m.giveUpAll(nil, m.life.Err())
	stream := m.stream
	m.work.Broadcast()
	m.mu.Unlock()
	if stream != nil {
		err = stream.Close()
	}
	for _, j := range left {
		m.finish(j, m.life.Err())
	}
	return err
}
