package pipe

import (
	"cmp"
	"context"
	"crypto/tls"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/quota"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Pipe carries messages between two processes, both ways, each direction in
// order. All methods may be called concurrently. A pipe that broke stays
// broken: every later call returns the first error.
type Pipe struct {
	context *Context
	role    channel.Role
	peer    string
	addr    string
	plan    *Plan
	first   transport.Conn // the connection that messages come by
	account *quota.Account // the memory of a peer that is not admitted; nil without a limit
	dialect dialect

	channels  []*lane
	lanes     map[devicePair][]sizedLane      // of the largest tensors first
	hostLanes []sizedLane                     // between host memory here and there
	arriving  map[device.Device]device.Device // for each device of the peer, one here that it reaches
	leaving   map[device.Device]struct{}      // the devices here that reach one of the peer
	plain     traffic                         // parts that were to be compressed and are not
	progress  atomic.Uint64                   // PipeStats.Progress

	ahead       chan *Incoming // see Ahead
	closeCalled atomic.Bool
	closing     chan struct{} // closed when Close begins
	closed      chan struct{} // closed when it has ended, with closeErr
	closeErr    error

	mu    sync.Mutex
	cause error         // why the pipe is down
	down  chan struct{} // closed with cause: connections are closing
	gone  chan struct{} // closed when nothing of the pipe runs any more
}

// dialect is what stands behind a Pipe: one way to talk to the peer. Its
// methods are those of Pipe, which documents them.
type dialect interface {
	write(ctx context.Context, m *Message) error
	tryWrite(m *Message) (taken bool, err error)
	writeConfirmed(ctx context.Context, m *Message) error
	writeAsync(ctx context.Context, m *Message) *WriteOp
	next(ctx context.Context) (*Incoming, error)
	poll(ctx context.Context) *Incoming
	confirms() bool
	stats() PipeStats

	// close ends the pipe gracefully; it is called once, when closing is
	// closed.
	close() error

	// fail takes the pipe down; the first cause stays.
	fail(cause error)
}

// Plan tells which path the pipe takes and why it takes no other. The caller
// must not change it.
func (p *Pipe) Plan() *Plan { return p.plan }

// Peer is the name of the other end: the context name it sent, or the URL that
// was dialled.
func (p *Pipe) Peer() string { return p.peer }

// RemoteAddr is the address of the other end of the first connection.
func (p *Pipe) RemoteAddr() string { return p.addr }

// Confirms reports whether the peer can confirm messages, see WriteConfirmed.
func (p *Pipe) Confirms() bool { return p.dialect.confirms() }

// TLS returns the state of the first connection's TLS, in which the peer's
// certificates are; false without TLS. All connections of a pipe are made by the
// same transport with the same configuration.
func (p *Pipe) TLS() (tls.ConnectionState, bool) {
	if c, ok := p.first.(transport.Secured); ok {
		return c.ConnectionState()
	}
	return tls.ConnectionState{}, false
}

// Done is closed when the pipe has broken or been closed and no longer touches
// any memory. Err says why.
func (p *Pipe) Done() <-chan struct{} { return p.gone }

// Err is why the pipe is down; nil while it is up.
func (p *Pipe) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cause
}

// Close ends the pipe gracefully: messages given to Write before still leave,
// what the peer sends meanwhile is discarded, calls blocked in Next and new
// calls return ErrClosed. It waits until the peer has closed its end too,
// CloseTimeout at most; then it returns an error that matches ErrCloseTimeout.
// It waits that long for a peer that does not take in what was sent to it.
// Nothing of the pipe runs when Close returns.
func (p *Pipe) Close() error {
	if p.closeCalled.CompareAndSwap(false, true) {
		close(p.closing)
		p.closeErr = p.dialect.close()
		close(p.closed)
	}
	<-p.closed
	return p.closeErr
}

// isClosing reports whether Close was called.
func (p *Pipe) isClosing() bool { return isClosed(p.closing) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Abort ends the pipe at once with a cause that later calls on it return.
// Messages on their way are lost. The text of the cause is sent to a peer of
// ours, whose errors show it. Abort does not wait; Done tells when nothing of
// the pipe runs any more. A nil cause stands for ErrClosed.
func (p *Pipe) Abort(cause error) { p.dialect.fail(cmp.Or(cause, ErrClosed)) }

// Next waits for the next message and returns its description; the bytes
// follow with [Incoming.Read]. Messages come in the order in which they were
// sent. Several may be taken before the first is read, as far as the
// read-ahead limits go. When the peer has closed its end and all its messages
// were returned, the error matches ErrPeerClosed; after Close it matches
// ErrClosed.
func (p *Pipe) Next(ctx context.Context) (*Incoming, error) {
	if p.isClosing() {
		return nil, p.errorFor("next", "", ErrClosed)
	}
	in, err := p.dialect.next(ctx)
	if err != nil && p.isClosing() {
		err = p.errorFor("next", "", ErrClosed) // whatever else came at the same moment
	}
	return in, err
}

// Poll is Next that never sleeps: it looks for the next message for some
// microseconds, as Next does before it sleeps, and returns nil if none came, or if
// messages of this pipe cannot be looked for, which is so over TCP and in the
// compatible dialect. It is for who waits for one answer while another goroutine is
// in Next all the time: the answer then takes no way over that one.
func (p *Pipe) Poll(ctx context.Context) *Incoming {
	if p.isClosing() {
		return nil
	}
	return p.dialect.poll(ctx)
}

// Ahead is where a message goes while somebody receives from it and those in Next
// have all that came before; nothing waits for its receivers, and it is never closed.
// It is for who waits for one answer while another goroutine is in Next all the time,
// once Poll has found nothing.
func (p *Pipe) Ahead() <-chan *Incoming { return p.ahead }

// handOver gives a message to who receives from Ahead, if anybody does.
func (p *Pipe) handOver(in *Incoming) bool {
	select {
	case p.ahead <- in:
		return true
	default:
		return false
	}
}

// errorFor puts a cause into an *Error, unless it is one already.
func (p *Pipe) errorFor(op, conn string, err error) error {
	// Not errors.As: a cause that the application gave may hold the error of
	// another pipe, and is to be kept whole.
	if e, ok := err.(*Error); ok && e.Peer == p.peerName() {
		conn, err = e.Conn, e.Err
	}
	return &Error{Op: op, Peer: p.peerName(), Conn: conn, Err: err}
}

// peerName names the other end in errors and labels.
func (p *Pipe) peerName() string {
	if p.peer == "" || strings.Contains(p.peer, p.addr) {
		return p.addr
	}
	return clip(p.peer) + " (" + p.addr + ")"
}

// reason is what to tell the caller of a failed operation: why the pipe went
// down, where that came first, rather than what its closing did.
func (p *Pipe) reason(err error) error {
	if cause := p.Err(); cause != nil {
		return cause
	}
	return classify(err)
}
