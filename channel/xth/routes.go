package xth

import (
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// table holds the descriptions that senders of this process have announced and receivers have not
// claimed yet.
//
// It is global because the two ends of a channel belong to two pipes, possibly of two contexts, which
// share nothing but the process; the alternative would be to trust an address that a peer sends. A
// route exists as long as one of its two ends does. If a sender closes before its receiver opens, the
// route remains for some time, without descriptions.
var table = routeTable{open: make(map[endpoints]*route)}

// maxOrphans bounds the routes that a sender has left before a receiver joined.
const maxOrphans = 256

// errSenderClosed matches the error of a tensor whose sender has closed.
var errSenderClosed = fmt.Errorf("%w: the sender has closed", channel.ErrAborted)

// endpoints identifies one direction of a connection by the addresses of sender and receiver. A peer in
// another process sees addresses of this process only as those of its own connections, and so cannot
// reach the descriptions of another connection.
type endpoints struct{ from, to string }

// routeTable maps endpoints to routes. mu guards it.
type routeTable struct {
	mu      sync.Mutex
	open    map[endpoints]*route
	orphans fifo.Queue[*route] // left by their senders, not joined by a receiver
}

// joinSender adds the sender as a user of the route with the endpoints e, and returns the route. It
// creates the route if there is none, or if an earlier sender left that route before a receiver
// joined. The sender must call leaveSender once.
func (r *routeTable) joinSender(e endpoints) *route {
	r.mu.Lock()
	defer r.mu.Unlock()
	rt := r.open[e]
	if rt == nil || rt.orphaned() { // of an earlier connection with these addresses
		rt = r.add(e)
	}
	rt.users++
	return rt
}

// joinReceiver adds the receiver as a user of the route with the endpoints e, and returns the
// route. It creates the route if there is none. The receiver must call leaveReceiver once.
func (r *routeTable) joinReceiver(e endpoints) *route {
	r.mu.Lock()
	defer r.mu.Unlock()
	rt := r.open[e]
	if rt == nil {
		rt = r.add(e)
	}
	rt.users++
	rt.met = true
	return rt
}

func (r *routeTable) add(e endpoints) *route {
	rt := &route{endpoints: e, descriptions: make(map[uint64]*description)}
	r.open[e] = rt
	return rt
}

func (r *routeTable) leaveSender(rt *route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rt.users--
	switch {
	case rt.users > 0:
	case !rt.met && rt.abandon():
		r.keepOrphan(rt)
	default:
		r.remove(rt)
	}
}

func (r *routeTable) leaveReceiver(rt *route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rt.users--
	if rt.users == 0 {
		r.remove(rt)
	}
}

// keepOrphan keeps rt in the table, although its sender has left before a receiver joined, so that
// the receiver finds out that the sender has closed. If the table then has more than maxOrphans
// such routes, keepOrphan drops the oldest, unless it has users again. The caller holds mu.
func (r *routeTable) keepOrphan(rt *route) {
	r.orphans.Push(rt)
	if r.orphans.Len() > maxOrphans {
		if oldest := r.orphans.Pop(); oldest.users == 0 {
			r.remove(oldest)
		}
	}
}

func (r *routeTable) remove(rt *route) {
	if r.open[rt.endpoints] == rt {
		delete(r.open, rt.endpoints)
	}
}

// route connects one sender and one receiver in the same process: it holds the descriptions that the
// sender has announced and the receiver has not claimed.
type route struct {
	endpoints endpoints
	users     int  // guarded by the table
	met       bool // a receiver has joined; guarded by the table

	mu           sync.Mutex
	descriptions map[uint64]*description // by announced address; nil after abandon
}

func (r *route) add(o *description) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.descriptions[o.address()] = o
}

// claim removes the description with the announced address from the route and returns it. The error
// matches channel.ErrAborted if the sender left before the receiver joined, and channel.ErrProtocol
// if the route has no description with that address.
func (r *route) claim(address uint64) (*description, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.descriptions[address]
	switch {
	case o != nil:
		delete(r.descriptions, address)
		return o, nil
	case r.descriptions == nil:
		return nil, errSenderClosed
	default:
		return nil, protocolError("nothing is described at %#x", address)
	}
}

// abandon drops all descriptions of the route, and reports whether there were any. claim then fails
// with errSenderClosed. The sender must have revoked these descriptions, or revoke them soon.
func (r *route) abandon() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	announced := len(r.descriptions) > 0
	r.descriptions = nil
	return announced
}

func (r *route) orphaned() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.descriptions == nil
}
