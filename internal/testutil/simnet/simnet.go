// Package simnet simulates a slow or faulty network between the two ends of any transport, for
// tests.
//
// A [Network] wraps a transport; both ends of a connection must come from the same Network. Each
// connection is a [Link], numbered in the order in which links are created. A [Rule] slows links
// down, or breaks one at a [Point] of its traffic; the methods of Link break it at a moment that
// the test chooses.
//
// Bytes written before a fault still arrive. Which bytes arrive depends only on the writes,
// not on the order in which goroutines run. So a test can count the frames of a scenario once and
// then repeat it with a fault after each of them:
//
//	for _, l := range network.Links() {
//		for n := range l.Sent(simnet.Dialled).Frames {
//			run(simnet.New(inner, simnet.CutAt(simnet.AfterFrames(l.Number(), simnet.Dialled, n))))
//		}
//	}
//
// The rules also apply to a connection that becomes a stream of bytes or a session of streams: each
// Write of bytes counts as a frame without a header. For a session that is each of its messages.
//
// Only rules make time pass. Over transport/mem, in a testing/synctest bubble, slow links cost no
// real time.
package simnet

import (
	"context"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Network is a transport whose connections are subject to rules. It implements
// [transport.Transport], [transport.AddressTranslator] and [transport.Local].
type Network struct {
	inner transport.Transport
	rules []Rule

	mu    sync.Mutex
	links []*Link
	byEnd map[ends]*Link // the newest link between two addresses
}

// ends are the addresses of the two ends of a link, by which the second end finds the link of the
// first.
type ends struct{ dialled, accepted string }

// New returns a Network that wraps the transport inner and applies rules to each new link, in
// order. It retains rules.
func New(inner transport.Transport, rules ...Rule) *Network {
	return &Network{inner: inner, rules: rules, byEnd: make(map[ends]*Link)}
}

// Links returns a new list of all links so far, in the order of their numbers, including those that
// have ended.
func (n *Network) Links() []*Link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]*Link(nil), n.links...)
}

// Viable returns the result of Viable of the wrapped transport.
func (n *Network) Viable() error { return n.inner.Viable() }

// DomainDescriptor returns the domain descriptor of the wrapped transport.
func (n *Network) DomainDescriptor() string { return n.inner.DomainDescriptor() }

// CanCommunicate returns the result of CanCommunicate of the wrapped transport.
func (n *Network) CanCommunicate(remote string) bool { return n.inner.CanCommunicate(remote) }

// Listen listens at addr on the wrapped transport and returns the listener, whose errors are those
// of the wrapped transport. The connections that it accepts are ends of links, to which the rules
// apply.
func (n *Network) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := n.inner.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &listener{Listener: l, network: n}, nil
}

// Dial dials addr on the wrapped transport and returns the connection as an end of a link, to which
// the rules apply. Dialling itself is neither delayed nor broken. The error is that of the wrapped
// transport.
func (n *Network) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := n.inner.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return n.attach(c, Dialled), nil
}

// Advertise returns the result of Advertise of the wrapped transport if that is a
// [transport.AddressTranslator], and otherwise addr.
func (n *Network) Advertise(addr string, c transport.Conn) string {
	if t, ok := n.inner.(transport.AddressTranslator); ok {
		return t.Advertise(addr, c)
	}
	return addr
}

// AdvertiseAt calls the wrapped transport if that is a [transport.AddressTranslator], and else
// returns addr and true.
func (n *Network) AdvertiseAt(addr, local string) (string, bool) {
	if t, ok := n.inner.(transport.AddressTranslator); ok {
		return t.AdvertiseAt(addr, local)
	}
	return addr, true
}

// Reach returns the result of Reach of the wrapped transport if that is a
// [transport.AddressTranslator], and otherwise addr.
func (n *Network) Reach(addr string, c transport.Conn) string {
	if t, ok := n.inner.(transport.AddressTranslator); ok {
		return t.Reach(addr, c)
	}
	return addr
}

// IsLocal returns the result of IsLocal of the wrapped transport if that is a [transport.Local],
// and otherwise false.
func (n *Network) IsLocal(addr string) bool {
	l, ok := n.inner.(transport.Local)
	return ok && l.IsLocal(addr)
}

// attach returns a connection that applies the rules to inner, as one end of a link, and owns
// inner. The end that is attached first creates the link; the other end finds it by the addresses
// of inner. If the addresses are those of an older link that has both ends, attach creates a new
// link.
func (n *Network) attach(inner transport.Conn, end End) transport.Conn {
	key := ends{dialled: inner.LocalAddr(), accepted: inner.RemoteAddr()}
	if end == Accepted {
		key = ends{dialled: inner.RemoteAddr(), accepted: inner.LocalAddr()}
	}
	n.mu.Lock()
	l := n.byEnd[key]
	if l == nil || l.has(end) {
		l = newLink(len(n.links), n.rules)
		n.links = append(n.links, l)
		n.byEnd[key] = l
	}
	c := newConn(l, end, inner)
	l.attach(end, inner)
	n.mu.Unlock()
	if _, ok := inner.(transport.Multiplexer); ok {
		return framedConn{c}
	}
	return c
}

type listener struct {
	transport.Listener
	network *Network
}

func (l *listener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return l.network.attach(c, Accepted), nil
}
