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

// WithBuffer sets how many bytes a connection holds per direction before a writer blocks, for the
// connections that this transport dials. Frame headers of 8 bytes are included. Values below 1 mean
// 1.
func WithBuffer(bytes int) Option {
	return func(t *Transport) { t.buffer = max(bytes, 1) }
}

// New returns a transport that reaches the listeners of network. If network is nil the transport
// gets a new one of its own.
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

// DomainDescriptor returns a text that identifies the network: "mem:" and an id that no other
// network has, in this process or another one.
func (t *Transport) DomainDescriptor() string { return "mem:" + t.network.id }

// CanCommunicate reports whether remote is the domain descriptor of the same network.
func (t *Transport) CanCommunicate(remote string) bool { return remote == t.DomainDescriptor() }

// IsLocal implements [transport.Local]. It returns true: a network exists in one process.
func (t *Transport) IsLocal(string) bool { return true }

// Listen opens a listener with the name addr, or with a free name if addr is empty. ctx bounds the
// call only. The error is an [*Error]; it matches syscall.EADDRINUSE if the name is in use.
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

// Dial connects to the listener with the name addr. It blocks while 128 connections to that
// listener are not yet accepted, until ctx ends. The error is an [*Error]; it matches
// syscall.ECONNREFUSED if there is no such listener or it is closed.
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

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
