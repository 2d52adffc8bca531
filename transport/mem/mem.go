// Package mem is the transport within one process: bytes are copied from the
// writer's memory into a bounded buffer and from there into the reader's.
//
// Transports reach each other when they share a [Network], by the names that
// their listeners carry. Two networks know nothing of each other, which keeps
// tests that run side by side apart. Nothing but channels and condition
// variables blocks, so everything here works inside a testing/synctest bubble;
// make the Network inside the bubble. The connections are Streamers and
// Multiplexers.
package mem

import (
	"context"
	"crypto/rand"
	"strconv"
	"sync"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// DefaultBuffer is the number of bytes that a connection holds per direction
// before a writer blocks, unless [WithBuffer] says otherwise.
const DefaultBuffer = 256 << 10

// Network is the name space that joins transports. Its methods may be called
// concurrently.
type Network struct {
	id string

	mu        sync.Mutex
	listeners map[string]*listener
	names     uint64 // names picked so far
	conns     uint64 // connections made so far
}

// NewNetwork returns a network without listeners.
func NewNetwork() *Network {
	return &Network{id: rand.Text(), listeners: make(map[string]*listener)}
}

// Transport is one process's view of a Network. It implements
// [transport.Transport].
type Transport struct {
	network *Network
	buffer  int
}

// Option changes a Transport.
type Option func(*Transport)

// WithBuffer sets how many bytes, frame headers of 8 bytes included, a
// connection dialled by this transport holds per direction before a writer
// blocks. Values below 1 mean 1.
func WithBuffer(bytes int) Option {
	return func(t *Transport) { t.buffer = max(bytes, 1) }
}

// New returns a transport that reaches the listeners of network. A nil network
// is a new one that the transport has for itself.
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

// Viable is always nil.
func (t *Transport) Viable() error { return nil }

// DomainDescriptor names the network: "mem:" and an id that no other network
// has, in this process or another.
func (t *Transport) DomainDescriptor() string { return "mem:" + t.network.id }

// CanCommunicate reports whether remote describes the same network.
func (t *Transport) CanCommunicate(remote string) bool { return remote == t.DomainDescriptor() }

// Listen opens a listener under the name addr; an empty name is replaced by
// one that is free. A name in use is an [*Error] that matches
// syscall.EADDRINUSE.
func (t *Transport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, &Error{Op: "listen", Addr: addr, Err: err}
	}
	l, err := t.network.listen(addr)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Dial connects to the listener named addr. It waits while too many
// connections to that listener are not accepted yet. Without such a listener
// the error is an [*Error] that matches syscall.ECONNREFUSED.
func (t *Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, &Error{Op: "dial", Addr: addr, Err: err}
	}
	l, number := t.network.find(addr)
	if l == nil {
		return nil, &Error{Op: "dial", Addr: addr, Err: syscall.ECONNREFUSED}
	}
	name := addr + "/" + strconv.FormatUint(number, 10)
	near, far := pair(name+".dial", name+".accept", t.buffer)
	if err := l.offer(ctx, far); err != nil {
		return nil, &Error{Op: "dial", Addr: addr, Err: err}
	}
	return near, nil
}

func (n *Network) listen(addr string) (*listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for addr == "" {
		n.names++
		if pick := "listener" + strconv.FormatUint(n.names, 10); n.listeners[pick] == nil {
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

// find returns the listener of that name, or nil, and a number for a
// connection to it.
func (n *Network) find(addr string) (*listener, uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns++
	return n.listeners[addr], n.conns
}

// forget frees the name of a listener.
func (n *Network) forget(l *listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[l.addr] == l {
		delete(n.listeners, l.addr)
	}
}
