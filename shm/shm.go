// Package shm is the transport over shared memory, for processes of one machine
// and one user. On the wire it is TensorPipe's transport of the same name: two
// rings of 2 MiB, one for each direction, in memory that the ends pass to each
// other over a Unix socket. In a ring each frame is its length as four
// little-endian bytes and then its body.
//
//	tr := shm.New()
//	l, err := tr.Listen(ctx, "")         // the kernel picks a name
//	c, err := tr.Dial(ctx, l.Addr())
//	err = c.WriteFrames(transport.Frame{[]byte("hello")})
//
// It works on Linux; elsewhere Viable says why not.
//
// # Addresses
//
// An address is the name of an abstract Unix socket, up to 107 bytes: it is no
// file, and has no permissions. A listener on the empty name is given one by
// the kernel, of five hexadecimal digits. Names are those of a network
// namespace.
//
// # Who may connect
//
// Whoever shares memory with a peer can be disturbed by it, so both ends ask the
// kernel who the other one is (SO_PEERCRED), and turn away other users, see
// [WithOtherUsers]. All processes of the user may connect: the transport has no
// secret of its own. Those who make one thing of several connections need one, as
// pipes do, whose handshake on the first connection tells the client ids of 64
// random bits, by which the listener knows those that belong to it. A pipe that is
// dialled right here in the native dialect has only that first connection; whoever
// opens one has a pipe of his own, and is in nobody else's.
//
// That check apart, what a peer puts into the memory is not trusted: it ends in
// an error of that connection. A peer that shrinks its memory under a call
// causes no crash, but an error that matches [ErrProtocol].
//
// # Waiting
//
// Who waits for a peer of ours looks at the memory for a while, see [WithSpin],
// and then sleeps, having left word in the ring. The peer wakes it with one byte
// on the Unix socket, and sends none to those who are awake. An idle connection
// costs no processor time.
//
// A C++ peer wakes nobody: it puts a token into a ring of the transport and
// takes that to be looked at without pause. While there are such peers, one
// goroutine of the transport looks: without a pause while tokens come and for a
// while after something was sent, then at intervals that grow with the time for
// which none came, see [WithPause].
//
// # Ends
//
// The end of the Unix socket is the end of the peer, be it closed or killed.
// What it had put into the ring by then is read first; then follows io.EOF, or
// io.ErrUnexpectedEOF within a frame. Unlike TCP, a connection that is closed
// with bytes unread takes nothing back that the peer still has to read.
//
// TensorPipe knows no end of one direction. Between ends of ours CloseWrite is
// a mark in the ring. A C++ peer sees the end of the socket once it has taken all
// that was written, and that is the end of the connection there: what the peer
// has in the ring by then is still read here.
//
// # Limits
//
// A frame is shorter than 4 GiB, see [transport.Bounded]. C++ peers read an object of the handshake or of
// a message's description in one piece, so for them it must fit into 2 MiB with the
// four bytes before it: their connections say so, see [transport.Whole], and a pipe
// refuses to send more.
//
// A connection keeps one descriptor open, a transport with connections three
// more. The goroutine that looks for tokens occupies a thread.
package shm

import (
	"math"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// Name is the transport's name on the wire.
const Name = "shm"

// largestFrame is the size of the longest frame in bytes, by what a header can say.
const largestFrame = math.MaxUint32

// settings are what options change.
type settings struct {
	otherUsers bool
	spin       time.Duration
	pause      time.Duration // at most, between two looks for tokens
	patience   time.Duration // for the handshake of a peer that dialled
}

// Option changes a Transport.
type Option func(*Transport)

// WithOtherUsers lets peers connect that run as another user. Such a peer can
// write to the memory of all C++ peers' connections of this transport, and so
// disturb, though not read, what they carry.
func WithOtherUsers() Option {
	return func(t *Transport) { t.otherUsers = true }
}

// WithSpin sets for how long at most who waits for a peer looks for what it
// does before going to sleep; 0 is not at all, the default 200 µs. It costs
// processor time and spares some 20 to 50 µs of waking up; where it finds
// nothing it becomes rare by itself. Who finds that the peer shares its processor moves
// its thread to another one, by sched_setaffinity; with 0 nobody calls that, be it that a
// filter ends the process for it.
func WithSpin(d time.Duration) Option {
	return func(t *Transport) { t.spin = d }
}

// firstPause is the shortest rest that spares anything.
const firstPause = 50 * time.Microsecond

// WithPause sets how long at most a transport leaves the tokens of C++ peers
// unseen; the default is 32 ms. It is that long only where nothing came for 64
// times as long, some 2 s, and so bounds what an idle transport takes: a look costs
// 60 to 170 µs of processor time, and so the default some 0.3 % of a core.
func WithPause(d time.Duration) Option {
	return func(t *Transport) { t.pause = max(d, firstPause) }
}

// New returns a transport over shared memory.
func New(opts ...Option) *Transport {
	t := &Transport{settings: settings{spin: wait.Spin, pause: 32 * time.Millisecond, patience: 10 * time.Second}}
	for _, opt := range opts {
		opt(t)
	}
	return t
}

// Viable says whether this process may share memory at all.
func (t *Transport) Viable() error { return viable() }

// DomainDescriptor names the running kernel and the network namespace, in which
// the names of sockets are.
func (t *Transport) DomainDescriptor() string { return descriptor() }

// LargestFrame implements [transport.Bounded].
func (t *Transport) LargestFrame() int64 { return largestFrame }

// CanCommunicate reports whether the peer is in the same domain.
func (t *Transport) CanCommunicate(remote string) bool {
	return viable() == nil && remote == descriptor()
}
