package xth

import "sync"

// routes holds what senders of this process have announced and receivers have
// not asked for yet.
//
// It is process-wide because the two ends of a channel belong to two pipes,
// perhaps of two contexts, that have nothing in common but the process; and it
// has to exist because the only other way for a receiver to find the memory is
// to believe an address that somebody sent. An entry lives while one of the
// two ends does.
var routes = registry{open: make(map[ends]*route)}

// ends names one direction of a connection by the addresses of the sender and
// of the receiver. A peer in another process sees addresses of this process
// only as those of its own connections, and so reaches no other's offers.
type ends struct{ from, to string }

// registry finds the route between two ends.
type registry struct {
	mu   sync.Mutex
	open map[ends]*route
}

// join returns the route between two ends, for one of them. Each calls leave
// when it needs the route no more.
func (r *registry) join(e ends) *route {
	r.mu.Lock()
	defer r.mu.Unlock()
	rt := r.open[e]
	if rt == nil {
		rt = &route{ends: e, offers: make(map[uint64]*offer)}
		r.open[e] = rt
	}
	rt.users++
	return rt
}

func (r *registry) leave(rt *route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rt.users--
	if rt.users == 0 {
		delete(r.open, rt.ends)
	}
}

// route leads from a sender to a receiver in the same process.
type route struct {
	ends  ends
	users int // guarded by the registry

	mu     sync.Mutex
	offers map[uint64]*offer // by the address that was announced
}

func (r *route) add(o *offer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offers[o.address()] = o
}

// claim takes the offer of that address for the receiver; nil if there is none.
func (r *route) claim(address uint64) *offer {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.offers[address]
	delete(r.offers, address)
	return o
}
