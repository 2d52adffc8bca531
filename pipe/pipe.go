// Package pipe moves messages between two processes: opaque metadata, small
// payloads in host memory, and tensors on any device, each tensor over the best
// path that the two ends share.
//
// A [Context] holds the transports, which carry descriptors and payloads, and the
// channels, which carry tensors, that the application allows for its pipes. The
// server listens, the client dials:
//
//	l, err := server.Listen(ctx, "uv://0.0.0.0:7000")
//	p, err := l.Accept(ctx)
//
//	p, err := client.Dial(ctx, "uv://host:7000")
//
// Once the pipe is open both ends are equal. Sending is one call,
//
//	err := p.Write(ctx, &pipe.Message{Metadata: md, Tensors: ts})
//
// and receiving two: Next returns the descriptor of a message, and [Incoming.Read]
// receives the bytes into memory that the receiver supplies.
//
//	in, err := p.Next(ctx)
//	a := pipe.NewAllocation(in.Descriptor())
//	err = in.Read(ctx, a)
//
// # The path
//
// When a pipe is opened the two ends agree on a transport and, for each pair of
// devices, on a channel. [Pipe.Plan] has the choice, and the reason why every other
// candidate was rejected. A [Policy] excludes paths; if none is left the pipe is not
// opened.
//
// # Without blocking
//
// A goroutine that must not block, or that wants a reply without a switch of goroutines, has the
// following set beside Next, Read and Write:
//
//   - [Pipe.TryNext] returns the next message if it has arrived or arrives within microseconds.
//   - [Pipe.NextCh] delivers the next message to a select, ahead of a goroutine that is in Next.
//   - [Incoming.Inline] reports whether Read waits for the peer to send further parts.
//   - [Pipe.TryWrite] sends a small message if that is possible without waiting. Two goroutines that
//     read and answer must use it, or write elsewhere: if both blocked in Write, neither would read.
//   - [Message.More] lets the pipe send a message together with those that follow.
//
// A caller that waits for one reply while a goroutine of the program is always in Next first calls
// TryNext until there is no message, and then selects from NextCh and its own channels.
//
// # Events
//
// [Options].Events is a struct of optional functions that are called when a pipe is opened, rejects
// a path, writes or reads a message, makes a writer wait for a budget, loses its peer, or ends.
//
// # Memory
//
// Memory given to a call belongs to the pipe until the call returns, or until the
// [WriteOp] is done. This also holds if the call fails or is cancelled, or if the peer
// dies during the call. Sizes that a peer claims are checked against [Limits] before
// memory is allocated.
//
// # The wire
//
// Two ends of this library use the native dialect, on one session and at most one more
// connection. With a C++ process that uses libtensorpipe a pipe uses the compatible
// dialect, the protocol of that library: messages are read in the order in which they
// were sent, and a partly sent message cannot be aborted without closing the pipe. The
// handshake chooses the dialect; Options.Dialect can require one.
package pipe

import (
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

// Pipe carries messages between two processes in both directions, each in order. All
// methods may be called concurrently. After a failure every later call returns the first
// error.
type Pipe struct {
	events       *Events     // nil: nothing is reported
	id           PipeID      // set by Context.register
	lostReported atomic.Bool // Events.PeerLost has been called

	context *Context
	role    channel.Role
	peer    string
	addr    string
	plan    *Plan
	first   transport.Conn // carries descriptors, or the session
	account *quota.Account // the memory that an unadmitted peer holds; nil without a limit
	engine  engine
	sender  sender
	written *WriteOp // the operation of every message whose memory may be reused at once

	channels       []*pipeChannel
	channelsByPair map[devicePair][]sizedChannel   // those of the largest tensors first
	hostChannels   []sizedChannel                  // between host memory at both ends
	recvDevices    map[device.Device]device.Device // for each device of the peer, a local one that it reaches
	sendDevices    map[device.Device]struct{}      // local devices that reach a device of the peer
	plain          traffic                         // parts sent uncompressed although compression was requested
	progress       atomic.Uint64                   // PipeStats.Progress

	nextCh chan *Incoming // see NextCh

	// The end of the pipe; see closing.go.
	closeFrames *closeFrames
	closeCalled atomic.Bool
	closing     chan struct{} // closed when Close begins
	closed      chan struct{} // closed when Close has ended and closeErr is set
	closeErr    error
	peerEnded   chan struct{}  // closed when the peer has closed its end and all its messages have arrived
	down        chan struct{}  // closed once cause is set; connections are being closed
	started     chan struct{}  // closed when the goroutines of the pipe have been started, or will not be
	running     sync.WaitGroup // these goroutines
	terminated  chan struct{}  // closed when they have ended

	mu    sync.Mutex
	end   error // of Next, once the peer has closed its end
	cause error // of the failure or close
}

// engine implements a Pipe in one dialect. A method without a comment has the contract of the Pipe
// method of the same name; stats sets Received, BytesReadAhead and Compression without Plain.
type engine interface {
	tryWrite(m *Message) (taken bool, err error)
	next(ctx context.Context) (*Incoming, error)
	tryNext() (*Incoming, error)
	pending() bool
	confirms() bool
	stats() PipeStats

	// send checks m, waits until the budgets admit it, and sends or queues it. The returned
	// operation ends when m's memory may be reused; it is nil if that is so already. number counts
	// the messages of this direction, from 0; if op is not nil op.number has it later. async is
	// set for WriteAsync, whose operation may wait for the peer where Write copies.
	send(ctx context.Context, m *Message, async bool) (number uint64, op *WriteOp, err error)

	// open opens the streams and channels of the pipe on the connections of s.
	open(ctx context.Context, s *spec) error

	// loops returns the functions that the goroutines of the open pipe run.
	loops() []func()

	// awaitRead waits until the peer has confirmed that it has read the message with this number.
	// If ctx or the pipe ends first, the error matches ErrUnconfirmed.
	awaitRead(ctx context.Context, number uint64) error

	// finishWriting waits until all messages are sent, and then tells the peer that no others
	// follow. If ctx ends first the error matches ErrCloseTimeout.
	finishWriting(ctx context.Context) error

	// drain discards received messages, so that the peer's writes complete, until the peer ends
	// its messages or the pipe is down.
	drain()

	// sendClose queues a close frame with cause as the reason, unless there is one. It does not
	// block, and takes no lock under which a method of the pipe is called.
	sendClose(cause error)

	// stopWriting makes all messages that have not completed, and further ones, fail with err.
	stopWriting(err error)

	// disconnect closes all connections and channels, which makes blocked calls return and release
	// their memory, and returns when all goroutines of the pipe have ended.
	disconnect(cause error)
}

// Plan returns the path of the pipe and the rejected candidates. Each call returns the same
// pointer, which the pipe uses too; the caller must not change the plan.
func (p *Pipe) Plan() *Plan { return p.plan }

// Peer returns the name of the other end: at the server the context name that the client
// sent, at the client the dialled URL.
func (p *Pipe) Peer() string { return p.peer }

// RemoteAddr returns the address of the peer's end of the pipe's first connection, in the form of
// the transport.
func (p *Pipe) RemoteAddr() string { return p.addr }

// Confirms reports whether the peer supports confirmations. If not, WriteConfirmed fails with
// ErrNoControl.
func (p *Pipe) Confirms() bool { return p.engine.confirms() }

// TLS returns the TLS state of the connection that carries the session or, in the compatible
// dialect, the descriptors, with the peer's certificates, and true. If that connection does not use
// TLS, it returns a zero state and false. The other connections of the pipe have the same transport
// and TLS configuration, except those that a channel such as mpt opens itself: they have those of
// the channel's transport.
func (p *Pipe) TLS() (tls.ConnectionState, bool) {
	if state := transport.IdentityOf(p.first).TLS; state != nil {
		return *state, true
	}
	return tls.ConnectionState{}, false
}

// Done returns a channel that is closed once the pipe has failed or was closed and uses
// no memory of the application any more. Err then returns the cause.
func (p *Pipe) Done() <-chan struct{} { return p.terminated }

// Err returns the error with which the pipe has failed or was closed; nil while it is open.
func (p *Pipe) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cause
}

// Next waits for the next message and returns it with its descriptor; [Incoming.Read] receives the
// bytes. Messages are returned in the order in which they were sent. Next may be called again
// before the message is read, within the read-ahead limits. If ctx ends first the error wraps the
// cause of ctx. Once the peer has closed its end and all its messages were returned, the error
// matches ErrPeerClosed; after Close it matches ErrClosed; after a failure it is that of the pipe.
func (p *Pipe) Next(ctx context.Context) (*Incoming, error) {
	if p.isClosing() {
		return nil, p.errorFor("next", "", ErrClosed)
	}
	in, err := p.engine.next(ctx)
	if err != nil && p.isClosing() {
		err = p.errorFor("next", "", ErrClosed) // not the error of a connection that Close has closed
	}
	return in, err
}

// TryNext returns the next message as Next does, but does not block: it spins for some microseconds
// at most, and if no message arrives in that time, both results are nil. A message that has been
// received is returned at once. After the last message, and after Close, it returns the error that
// Next returns. In the native dialect, through shared memory and in Linux over plain TCP, TryNext
// receives messages itself, without a switch of goroutines; on other paths only a goroutine of the
// pipe receives them.
func (p *Pipe) TryNext() (*Incoming, error) {
	if p.isClosing() {
		return nil, p.errorFor("next", "", ErrClosed)
	}
	in, err := p.engine.tryNext()
	if err != nil && p.isClosing() {
		err = p.errorFor("next", "", ErrClosed) // as in Next
	}
	return in, err
}

// Pending reports whether a message that Next has not returned has begun to arrive, as far as the pipe
// knows without asking the system. It does not block.
func (p *Pipe) Pending() bool { return p.engine.pending() }

// NextCh returns a channel that a goroutine can use in a select. The pipe sends the next message to
// it, instead of returning it from Next, if a goroutine is receiving from the channel at that
// moment and all earlier messages have been returned. The pipe never waits for a receiver and never
// closes the channel, so another goroutine must be in Next.
func (p *Pipe) NextCh() <-chan *Incoming { return p.nextCh }

// sendNext passes in to a goroutine that is receiving from the channel of NextCh, and reports true.
// If there is no such goroutine, it reports false at once, and the caller keeps in.
func (p *Pipe) sendNext(in *Incoming) bool {
	select {
	case p.nextCh <- in:
		return true
	default:
		return false
	}
}

// errorFor returns a new *Error of this pipe for the call op and the connection conn, which may be
// empty. The *Error wraps err. If err is itself an *Error of this pipe, its Conn and Err are used
// in place of conn and err, so that the result does not name the pipe twice.
func (p *Pipe) errorFor(op, conn string, err error) error {
	// Not errors.As: a cause that the application gave may wrap the error of another
	// pipe, and must be kept whole.
	if e, ok := err.(*Error); ok && e.Peer == p.peerName() {
		conn, err = e.Conn, e.Err
	}
	return &Error{Op: op, Peer: p.peerName(), Conn: conn, Err: err}
}

// peerName returns a text for errors and profiler labels: the name of the other end, without
// unprintable characters, and its address in parentheses. It returns the address alone if the name
// is empty or contains the address.
func (p *Pipe) peerName() string {
	if p.peer == "" || strings.Contains(p.peer, p.addr) {
		return p.addr
	}
	return sanitize(p.peer) + " (" + p.addr + ")"
}
