// Package mem is the transport within one process. Bytes are copied from the writer's memory into a
// bounded buffer and from there into the reader's.
//
// Transports that share a [Network] reach each other by the names of their listeners. Different
// networks are separate, so that tests can run concurrently. Calls block only on channels and
// condition variables, so everything works inside a testing/synctest bubble; the Network must be
// made inside the bubble. The connections are Multiplexers.
package mem

import (
	"context"
	"crypto/rand"
	"strconv"
	"sync"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// DefaultBuffer is the number of bytes that a connection holds per direction before a writer
// blocks, unless [WithBuffer] sets another.
const DefaultBuffer = 256 << 10

// Network is the name space of listeners that transports share. Its methods may be called
// concurrently.
type Network struct {
	id string

	mu          sync.Mutex
	listeners   map[string]*listener
	pickedNames uint64 // number of names picked so far
	conns       uint64 // number of connections so far
}

// NewNetwork returns a network without listeners.
func NewNetwork() *Network {
	return &Network{id: rand.Text(), listeners: make(map[string]*listener)}
}

// Transport is one process's view of a Network, on which it listens and dials. It implements
// [transport.Transport] and [transport.Local].
type Transport struct {
	network *Network
	buffer  int
}

// Option sets a property of the Transport that New returns.
type Option func(*Transport)

// WithBuffer sets how many written bytes a connection holds in each direction before a writer
// blocks. It applies to the connections that this transport dials; the default is [DefaultBuffer].
// The 8 bytes of each frame's header count too. Values below 1 mean 1.
func WithBuffer(bytes int) Option {
	return func(t *Transport) { t.buffer = max(bytes, 1) }
}

// New returns a transport whose listeners are part of network and which dials the listeners of
// network. If network is nil, the transport gets a new network that no other transport shares.
func New(network *Network, opts ...Option) *Transport {
	if network == nil {
		network = NewNetwork()
	}
	t := &Transport{network: network, buffer: DefaultBuffer}
	for _, opt := range opts {
		opt(t)
	}
	return t
}

// Viable returns nil: the transport works everywhere.
func (t *Transport) Viable() error { return nil }

// DomainDescriptor returns "mem:" followed by the random id of the network, which no other network
// has in any process. Transports of the same network return the same text.
func (t *Transport) DomainDescriptor() string { return "mem:" + t.network.id }

// CanCommunicate reports whether remote is equal to t's own domain descriptor, so that both
// transports share a network.
func (t *Transport) CanCommunicate(remote string) bool { return remote == t.DomainDescriptor() }

// IsLocal returns true for every address: only this process can reach the listeners of its
// networks.
func (t *Transport) IsLocal(string) bool { return true }

// Listen opens a listener with the name addr, or with a name that it picks if addr is empty. It
// does not block. The error is an [*Error]; it matches syscall.EADDRINUSE if an open listener of
// the network has that name, and ctx's error if ctx has ended before the call.
func (t *Transport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, &Error{Op: "listen", Addr: addr, Err: err}
	}
	n := t.network
	n.mu.Lock()
	defer n.mu.Unlock()
	for addr == "" {
		n.pickedNames++
		if pick := "listener" + strconv.FormatUint(n.pickedNames, 10); n.listeners[pick] == nil {
			addr = pick
		}
	}
	if n.listeners[addr] != nil {
		return nil, &Error{Op: "listen", Addr: addr, Err: syscall.EADDRINUSE}
	}
	l := newListener(n, addr)
	n.listeners[addr] = l
	return l, nil
}

// Dial connects to the listener with the name addr, and returns without waiting for Accept. It
// blocks only while 128 connections to that listener are not yet accepted, until ctx ends. The
// error is an [*Error]; it matches syscall.ECONNREFUSED if there is no such listener or it is
// closed, and ctx's error if ctx has ended.
func (t *Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, &Error{Op: "dial", Addr: addr, Err: err}
	}
	t.network.mu.Lock()
	t.network.conns++
	l, number := t.network.listeners[addr], t.network.conns
	t.network.mu.Unlock()
	if l == nil {
		return nil, &Error{Op: "dial", Addr: addr, Err: syscall.ECONNREFUSED}
	}
	name := addr + "/" + strconv.FormatUint(number, 10)
	near, far := pair(name+".dial", name+".accept", t.buffer)
	if err := l.enqueue(ctx, far); err != nil {
		return nil, &Error{Op: "dial", Addr: addr, Err: err}
	}
	return near, nil
}

// Error is the error of Listen, Dial or a write. Err is the cause: ctx's error, or the
// syscall.Errno that TCP would return, so that callers can treat both transports alike:
// ECONNREFUSED if there is no listener, EADDRINUSE if there already is one, EPIPE if the peer has
// closed.
type Error struct {
	Op   string // "listen", "dial" or "write"
	Addr string // the address asked for, or the peer's
	Err  error
}

func (e *Error) Error() string { return "mem: " + e.Op + " " + e.Addr + ": " + e.Err.Error() }

// Unwrap returns e.Err, the cause.
func (e *Error) Unwrap() error { return e.Err }
