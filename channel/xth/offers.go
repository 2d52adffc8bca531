package xth

import (
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// routes holds what senders of this process have announced and receivers have
// not asked for yet.
//
// It is process-wide because the two ends of a channel belong to two pipes,
// perhaps of two contexts, that have nothing in common but the process; and it
// has to exist because the only other way for a receiver to find the memory is
// to believe an address that somebody sent. An entry lives while one of the
// two ends does; that of a sender which left before its receiver came lives on
// for a while, without offers.
var routes = registry{open: make(map[ends]*route)}

// maxOrphans bounds the routes whose receivers have not come yet, and may never
// do so.
const maxOrphans = 256

// errGone matches what a withdrawn tensor ends with.
var errGone = fmt.Errorf("%w: the sender has gone", channel.ErrAborted)

// ends names one direction of a connection by the addresses of the sender and
// of the receiver. A peer in another process sees addresses of this process
// only as those of its own connections, and so reaches no other's offers.
type ends struct{ from, to string }

// registry finds the route between two ends.
type registry struct {
	mu      sync.Mutex
	open    map[ends]*route
	orphans fifo.Queue[*route]
}

// joinSender returns the route between two ends for the one that announces. It
// calls leaveSender when it needs the route no more.
func (r *registry) joinSender(e ends) *route {
	r.mu.Lock()
	defer r.mu.Unlock()
	rt := r.open[e]
	if rt == nil || rt.orphaned() { // by a connection that had these addresses before
		rt = r.add(e)
	}
	rt.users++
	return rt
}

// joinReceiver returns it for the other one, which calls leaveReceiver.
func (r *registry) joinReceiver(e ends) *route {
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

func (r *registry) add(e ends) *route {
	rt := &route{ends: e, offers: make(map[uint64]*offer)}
	r.open[e] = rt
	return rt
}

func (r *registry) leaveSender(rt *route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rt.users--
	switch {
	case rt.users > 0:
	case !rt.met && rt.abandon():
		r.keep(rt)
	default:
		r.remove(rt)
	}
}

func (r *registry) leaveReceiver(rt *route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rt.users--
	if rt.users == 0 {
		r.remove(rt)
	}
}

// keep remembers a route that its sender has left, in place of the oldest such.
func (r *registry) keep(rt *route) {
	r.orphans.Push(rt)
	if r.orphans.Len() > maxOrphans {
		if oldest := r.orphans.Pop(); oldest.users == 0 {
			r.remove(oldest)
		}
	}
}

func (r *registry) remove(rt *route) {
	if r.open[rt.ends] == rt {
		delete(r.open, rt.ends)
	}
}

// route leads from a sender to a receiver in the same process.
type route struct {
	ends  ends
	users int  // guarded by the registry
	met   bool // a receiver has come; likewise

	mu     sync.Mutex
	offers map[uint64]*offer // by the address that was announced; nil once the sender left alone
}

func (r *route) add(o *offer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offers[o.address()] = o
}

// claim takes the offer of that address for the receiver. There is none where
// the sender left before the receiver came, or the peer makes it up.
func (r *route) claim(address uint64) (*offer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.offers[address]
	switch {
	case o != nil:
		delete(r.offers, address)
		return o, nil
	case r.offers == nil:
		return nil, errGone
	default:
		return nil, protocolError("nothing is on offer at %#x", address)
	}
}

// abandon lets go of what was announced, all of which is withdrawn, and reports
// whether that was anything.
func (r *route) abandon() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	announced := len(r.offers) > 0
	r.offers = nil
	return announced
}

func (r *route) orphaned() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.offers == nil
}
