package rref

import "time"

// KeptFor reports whether the owner of f has confirmed f, and whether the owner, which has the given
// references, keeps the value for it. f must not be released meanwhile.
func KeptFor[T any](owner *Refs, f *Ref[T]) (isConfirmed, kept bool) {
	c := f.core
	c.refs.mu.Lock()
	isConfirmed = c.state == confirmed
	v := c.value
	c.refs.mu.Unlock()
	owner.mu.Lock()
	defer owner.mu.Unlock()
	if c.isOwned() {
		_, kept = owner.values[v]
		return isConfirmed, kept
	}
	if k := owner.forks[c.id]; k != nil && !k.gone {
		_, kept = owner.values[k.value]
	}
	return isConfirmed, kept
}

// Tables returns the sizes of all tables of r that must be empty some leases after the last reference
// was released.
func (r *Refs) Tables() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return map[string]int{
		"values": len(r.values), "forks": len(r.forks), "holders": len(r.holders), "epochs": len(r.epochs),
		"awaited": len(r.awaited), "awaitedOf": len(r.awaitedOf), "cores": len(r.cores), "owners": len(r.owners),
		"children": len(r.children), "arriving": len(r.arriving), "leases": int(r.leases.Load()),
		"headers": int(r.headers.Load()), "handles": int(r.handles.Load()),
	}
}

// ForkOf returns the id of the fork of f.
func ForkOf[T any](f *Ref[T]) [16]byte { return f.core.id }

// Waiting returns the number of requests and calls that wait until values of r are ready.
func (r *Refs) Waiting() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for v := range r.values {
		n += len(v.waiting)
	}
	return n
}

// StopFor makes r take its process for one that has been stopped for d, at the next tick.
func (r *Refs) StopFor(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ticked = r.ticked.Add(-d)
	for _, h := range r.holders {
		h.heard = h.heard.Add(-d)
	}
}
