// Package simnet puts a network with faults between the two ends of any
// transport, for tests.
//
// A [Network] wraps a transport; both ends of a connection must come from the
// same Network. Each connection is a [Link], numbered in the order of dialling.
// Rules slow links down or break them at a [Point] of the traffic; the methods
// of Link break them at a moment that the test chooses.
//
// What was written before a fault still arrives, and what arrives is decided
// by what was written, never by who runs first. So a test can count the frames
// of a scenario once and then repeat it with a fault at every one of them:
//
//	for _, l := range whole.Links() {
//		for n := range l.Sent(simnet.Dialled).Frames {
//			run(simnet.New(inner, simnet.CutAt(simnet.AfterFrames(l.Number(), simnet.Dialled, n))))
//		}
//	}
//
// A connection that gives up its framing, or becomes a session of streams, stays
// under the rules: each Write of the bare bytes counts as a frame without a
// header, which for a session is each of its messages.
//
// Time passes only where a rule makes it. Over transport/mem, in a
// testing/synctest bubble, a network of slow links is simulated in no time.
package simnet

import (
	"context"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Network is a transport whose connections are subject to rules. It implements
// [transport.Transport].
type Network struct {
	inner transport.Transport
	rules []Rule

	mu    sync.Mutex
	links []*Link
	byEnd map[ends]*Link // the newest link between two addresses
}

// ends are the addresses by which the two ends of a link find each other.
type ends struct{ dialled, accepted string }

// New wraps inner. Each new link is subject to all rules that apply to it.
func New(inner transport.Transport, rules ...Rule) *Network {
	return &Network{inner: inner, rules: rules, byEnd: make(map[ends]*Link)}
}

// Links returns all links so far, by number; links that ended stay.
func (n *Network) Links() []*Link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]*Link(nil), n.links...)
}

// Viable asks the wrapped transport.
func (n *Network) Viable() error { return n.inner.Viable() }

// DomainDescriptor asks the wrapped transport.
func (n *Network) DomainDescriptor() string { return n.inner.DomainDescriptor() }

// CanCommunicate asks the wrapped transport.
func (n *Network) CanCommunicate(remote string) bool { return n.inner.CanCommunicate(remote) }

// Listen listens on the wrapped transport.
func (n *Network) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := n.inner.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &listener{Listener: l, network: n}, nil
}

// Dial dials on the wrapped transport; that itself is neither slow nor broken.
func (n *Network) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := n.inner.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return n.join(c, Dialled), nil
}

// Reach implements [transport.Reacher] as the wrapped transport does.
func (n *Network) Reach(addr string, c transport.Conn) string {
	if r, ok := n.inner.(transport.Reacher); ok {
		return r.Reach(addr, c)
	}
	return addr
}

// join makes c an end of its link. Either end may come first, and the system
// may give two addresses to a new connection that an old one had.
func (n *Network) join(inner transport.Conn, end End) transport.Conn {
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
	l.join(end, inner)
	n.mu.Unlock()
	if _, ok := inner.(transport.Streamer); ok {
		return powerful{c}
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
	return l.network.join(c, Accepted), nil
}

// AdvertiseTo implements [transport.Advertiser] as the wrapped listener does.
func (l *listener) AdvertiseTo(c transport.Conn) string {
	if a, ok := l.Listener.(transport.Advertiser); ok {
		return a.AdvertiseTo(c)
	}
	return l.Addr()
}
