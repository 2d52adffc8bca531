// Package shm is the transport through shared memory, for processes of one machine and one user. On
// the wire it is TensorPipe's transport of the same name: two rings of 2 MiB, one for each
// direction, in memory that the ends pass to each other over a Unix socket. In a ring, each frame
// is its length as four little-endian bytes, followed by its body.
//
//	tr := shm.New()
//	l, err := tr.Listen(ctx, "")         // the kernel picks a name
//	c, err := tr.Dial(ctx, l.Addr())
//	err = c.WriteFrames(transport.Frame{[]byte("hello")})
//
// It works on Linux. On other systems Viable returns the reason why not.
//
// # Addresses
//
// An address is the name of an abstract Unix socket, up to 107 bytes. It is not a file, and has no
// permissions. For a listener on the empty name the kernel chooses a name of five hexadecimal
// digits. Names belong to a network namespace.
//
// # Access
//
// A peer can disturb a process with which it shares memory. So both ends ask the kernel for the
// user of the other one (SO_PEERCRED), and reject other users, see [WithOtherUsers]. All processes
// of the user may connect: the transport has no secret of its own. An application that combines
// several connections needs one. A pipe has one: its handshake on the first connection gives the
// client ids of 64 random bits, by which the listener recognizes the other connections of the pipe.
// A native pipe that is dialled over shared memory has only that first connection; a process that
// opens one has a new pipe, and no access to others.
//
// Beyond that check, what a peer writes to the memory is not trusted: an invalid value is an error
// of that connection. A peer that shrinks its memory during a call causes no crash, but an error
// that matches [ErrProtocol].
//
// # Waiting
//
// With a peer of this package, a call that waits polls the memory for a while, see [WithSpin]; if
// several pipes have input in turn, Next of a pipe polls for the others too. Then it sets a bit in the
// ring and blocks. The peer wakes it with one byte on the Unix socket, a
// doorbell, which it sends only if the bit is set. An idle connection costs no processor time.
//
// A C++ peer sends no doorbells: it writes a trigger to the ring of the transport's reactor, which
// it expects to be polled without pause. While there are such peers, one goroutine of the transport
// polls: without a pause while triggers come and for a while after something was sent, then at
// intervals that grow with the time since the last trigger, see [WithPause].
//
// # Closing
//
// The end of the Unix socket shows that the peer has closed or died. Reads first return what it had
// written to the ring; then they return io.EOF, or io.ErrUnexpectedEOF within a frame. Unlike with
// TCP, closing a connection that has unread bytes does not discard what the peer has still to read.
//
// TensorPipe cannot end one direction alone. Between ends of this package CloseWrite is a bit in
// the ring. For a C++ peer this end closes the writing half of the socket once the peer has read
// everything, and the peer then closes the connection; what it has written to the ring by then is
// still read here.
//
// # Limits
//
// A frame is shorter than 4 GiB. C++ peers read an object of the handshake, or of a message's
// description, in one piece, so it must fit into 2 MiB together with the four bytes before it.
// Connections report these limits, see [transport.FrameLimiter], and a pipe refuses to send more.
//
// A connection keeps one descriptor open, and a transport with connections three more. The
// goroutine that polls for triggers occupies a thread.
package shm

import (
	"math"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/internal/sysid"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Name is the transport's name on the wire.
const Name = "shm"

// largestFrame is the size of the longest frame in bytes: the length in a header has four bytes.
const largestFrame = math.MaxUint32

// settings are the properties of a Transport that options set.
type settings struct {
	otherUsers       bool
	wait             wait.Config
	pause            time.Duration // the longest between two polls for triggers
	handshakeTimeout time.Duration // of a peer that has dialled
}

// Option sets a property of the Transport that New returns.
type Option func(*Transport)

// WithOtherUsers permits connections with peers that run as another user, which are rejected
// otherwise. Such a peer can write to the ring of triggers that all connections with C++ peers
// share. So it can disturb these connections, but not read their bytes.
func WithOtherUsers() Option {
	return func(t *Transport) { t.otherUsers = true }
}

// WithSpin sets how long a call that waits for a peer polls the memory before it blocks. The
// default is 200 µs; 0 disables polling. Polling costs processor time and saves the 20 to 50 µs
// that waking up takes. Calls poll less often while polls find nothing. If the peer runs on the
// processor of the call, the call moves its thread to another one with sched_setaffinity; with 0
// that system call is never made, so that a seccomp filter which forbids it does no harm.
func WithSpin(d time.Duration) Option {
	return func(t *Transport) { t.wait.Spin = d }
}

// WithBusyPolling makes calls that wait for a peer poll until it has made progress, also after the
// time of [WithSpin]: after a rest a message then need not wait until a sleeping processor is awake.
// It is off by default.
//
// While any session of the process with this option, or that of package uv, waits for its peer, one
// goroutine polls for all of them. That takes one processor, whose time also counts against the quota
// of a container; with C++ peers the goroutine that polls for their triggers takes another one. The
// process should have other processors for its work. If it has one (GOMAXPROCS=1) the polling takes
// what other goroutines and processes leave, messages wait for their turns, and triggers are polled
// for as without the option.
//
// Connections with peers of this package that are not sessions block as without the option.
func WithBusyPolling() Option {
	return func(t *Transport) { t.wait.Busy = true }
}

// minPause is the shortest pause that saves processor time.
const minPause = 50 * time.Microsecond

// WithPause sets the longest pause between two polls for triggers of C++ peers. The default is 32
// ms; a d below 50 µs counts as 50 µs. The pause reaches that length after 64 times as long, by
// default some 2 s, in which no trigger has come and nothing was sent to a C++ peer. It bounds the
// cost of an idle transport: a poll takes 60 to 170 µs of processor time, so with the default some
// 0.3 % of a core.
func WithPause(d time.Duration) Option {
	return func(t *Transport) { t.pause = max(d, minPause) }
}

// New returns a transport through shared memory with these options. It acquires nothing from the
// system and cannot fail; Viable reports whether the transport works here.
func New(opts ...Option) *Transport {
	t := &Transport{settings: settings{wait: wait.Config{Spin: wait.Spin}, pause: 32 * time.Millisecond, handshakeTimeout: 10 * time.Second}}
	for _, opt := range opts {
		opt(t)
	}
	return t
}

// Viable returns nil if this process can share memory, and otherwise the reason, which matches
// [transport.ErrNotSupported]. The process tries it once, for all transports; later calls return
// the same result.
func (t *Transport) Viable() error { return viable() }

// DomainDescriptor returns a text that identifies the running kernel and the network namespace, to
// which the names of abstract sockets belong. It is "shm:unknown" if they cannot be determined.
func (t *Transport) DomainDescriptor() string { return descriptor() }

// IsLocal implements [transport.Local]. It returns true: only processes of this machine can share
// memory.
func (t *Transport) IsLocal(string) bool { return true }

// FrameLimits implements [transport.FrameLimiter]. Max is 2^32-1 bytes. MaxWhole is 0, although
// connections with C++ peers have such a limit: it depends on the peer.
func (t *Transport) FrameLimits() transport.FrameLimits {
	return transport.FrameLimits{Max: largestFrame}
}

// CanCommunicate reports whether this process can share memory and remote, the peer's domain
// descriptor, equals its own.
func (t *Transport) CanCommunicate(remote string) bool {
	return viable() == nil && remote == descriptor()
}

// maxName is the longest name of an abstract socket in bytes.
const maxName = 107

// checkName returns an *AddrError if no listener can have that name. The empty name is valid.
func checkName(name string) error {
	switch {
	case len(name) > maxName:
		return &AddrError{Addr: name, Reason: "a name has at most 107 bytes"}
	case strings.ContainsRune(name, 0):
		return &AddrError{Addr: name, Reason: "a name has no zero byte"}
	}
	return nil
}

// viable tries once what a connection needs.
var viable = probe.Once("shm", func() error {
	if _, err := domain(); err != nil {
		return err
	}
	return tryMachine()
})

// descriptor is the domain descriptor, in TensorPipe's form. If this machine's identity is unknown
// it equals no peer's.
var descriptor = sync.OnceValue(func() string {
	text, err := domain()
	if err != nil {
		return "shm:unknown"
	}
	return text
})

func domain() (string, error) {
	boot, err := sysid.BootID()
	if err != nil {
		return "", err
	}
	ns, err := sysid.NamespaceID(sysid.Net)
	if err != nil {
		return "", err
	}
	return "shm:" + boot + "_" + ns, nil
}
