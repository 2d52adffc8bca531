// Package quota bounds the memory that peers which are not trusted yet hold together.
//
// Peers share a [Pool] of bytes; each has an [Account]. When the pool is used up, the
// account that holds most is evicted: a flood of strangers costs the largest of them
// their connections, and never a peer that holds little. An evicted account counts
// until it is closed, since its memory is in use until then; charges that need those
// bytes wait for that.
package quota

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Pool is a number of bytes that accounts share. A nil Pool has no bound: its accounts
// are nil and count nothing.
type Pool struct {
	size int

	mu      sync.Mutex
	used    int        // bytes charged to all accounts, evicted ones included
	leaving int        // of these, the bytes of evicted accounts
	wanted  int        // bytes for which charges wait
	waiting []*claim   // those charges, oldest first
	open    []*Account // neither evicted nor closed, oldest first
	evicted uint64
}

// Account is what one peer holds of a Pool. All methods may be called concurrently, and
// on a nil Account, which admits everything.
type Account struct {
	pool  *Pool
	state atomic.Int32 // written with pool.mu held

	// Guarded by pool.mu.
	evict  func()
	held   int // bytes charged
	wanted int // bytes for which its charges wait
}

// States of an Account.
const (
	counting int32 = iota
	closed         // charges succeed and count nothing
	revoked        // evicted: charges fail, held bytes count until Close
	gone           // evicted and closed
)

// claim is a charge that waits.
type claim struct {
	account *Account
	n       int
	granted bool
	done    chan struct{}
}

// New returns a Pool of size bytes, or nil if size is not above 0.
func New(size int) *Pool {
	if size <= 0 {
		return nil
	}
	return &Pool{size: size}
}

// Open returns a new account. evict is called, on a goroutine of its own and at most
// once, when the account is evicted; it has the peer's memory released and then Close
// called.
func (p *Pool) Open(evict func()) *Account {
	if p == nil {
		return nil
	}
	a := &Account{pool: p, evict: evict}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = append(p.open, a)
	return a
}

// Used returns the bytes that are charged, and the number of accounts evicted so far.
func (p *Pool) Used() (bytes int, evicted uint64) {
	if p == nil {
		return 0, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used, p.evicted
}

// OnEvict replaces the function that Open was given. It reports false if the account
// was evicted before; then the old function was or is being called.
func (a *Account) OnEvict(evict func()) bool {
	if a == nil {
		return true
	}
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	a.evict = evict
	return !a.isRevoked()
}

// Charge counts n bytes, before they are allocated. Where the pool has not as many it
// evicts the accounts that hold most, a itself if that is one of them, and waits until
// enough of the evicted accounts are closed. It reports false if a is evicted.
func (a *Account) Charge(n int) bool {
	if a == nil || a.state.Load() == closed {
		return true
	}
	p := a.pool
	p.mu.Lock()
	if a.state.Load() != counting {
		defer p.mu.Unlock()
		return !a.isRevoked()
	}
	if p.fits(n) && p.used-p.leaving+p.wanted+n <= p.size {
		a.add(n)
		p.mu.Unlock()
		return true
	}
	c := &claim{account: a, n: n, done: make(chan struct{})}
	p.waiting = append(p.waiting, c)
	p.wanted += n
	a.wanted += n
	p.makeRoom()
	p.grant()
	p.mu.Unlock()
	<-c.done
	return c.granted
}

// TryCharge counts n bytes if the pool has as many and reports whether it did. It
// evicts no account and does not wait.
func (a *Account) TryCharge(n int) bool {
	if a == nil || a.state.Load() == closed {
		return true
	}
	p := a.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.state.Load() != counting {
		return !a.isRevoked()
	}
	if !p.fits(n) || p.used-p.leaving+p.wanted+n > p.size {
		return false
	}
	a.add(n)
	return true
}

// Add counts n bytes and does not wait. It is for small amounts and for callers that
// hold locks: the pool may be exceeded until the accounts that Add evicts are closed.
func (a *Account) Add(n int) {
	if a == nil || a.state.Load() == closed {
		return
	}
	p := a.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	switch a.state.Load() {
	case counting:
		a.add(n)
		p.makeRoom()
	case revoked:
		a.add(n)
		p.leaving += n
	}
}

// Release gives back n bytes that were charged or added.
func (a *Account) Release(n int) {
	if a == nil || n == 0 || a.state.Load() == closed {
		return
	}
	p := a.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	switch a.state.Load() {
	case closed, gone:
		return // Close has given back everything
	case revoked:
		p.leaving -= n
	}
	a.add(-n)
	p.grant()
}

// Close gives back all that the account holds and ends its counting: the peer is
// trusted from now on, or its memory is free. Later calls do nothing.
func (a *Account) Close() {
	if a == nil {
		return
	}
	p := a.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	switch a.state.Load() {
	case counting:
		p.remove(a)
		a.state.Store(closed)
		p.settle(a, true)
	case revoked:
		p.leaving -= a.held
		a.state.Store(gone)
	default:
		return
	}
	a.add(-a.held)
	p.grant()
}

func (a *Account) isRevoked() bool { return a.state.Load() >= revoked }

func (a *Account) add(n int) {
	a.held += n
	a.pool.used += n
}

func (p *Pool) fits(n int) bool { return p.used+n <= p.size }

// makeRoom evicts accounts until all charges that wait will fit once those accounts are
// closed. The caller holds mu.
func (p *Pool) makeRoom() {
	for p.used-p.leaving+p.wanted > p.size && len(p.open) > 0 {
		// Of several the newest: an older one that is no larger is as likely to be honest
		// and has less of its handshake before it.
		largest := p.open[0]
		for _, a := range p.open {
			if a.held+a.wanted >= largest.held+largest.wanted {
				largest = a
			}
		}
		p.remove(largest)
		largest.state.Store(revoked)
		p.leaving += largest.held
		p.evicted++
		p.settle(largest, false)
		go largest.evict()
	}
}

func (p *Pool) remove(a *Account) {
	i := slices.Index(p.open, a)
	p.open = slices.Delete(p.open, i, i+1)
}

// settle ends the charges of one account that wait. The caller holds mu.
func (p *Pool) settle(a *Account, granted bool) {
	p.waiting = slices.DeleteFunc(p.waiting, func(c *claim) bool {
		if c.account == a {
			p.end(c, granted)
		}
		return c.account == a
	})
}

// end takes a claim out of the sums and wakes its goroutine. The caller holds mu.
func (p *Pool) end(c *claim, granted bool) {
	p.wanted -= c.n
	c.account.wanted -= c.n
	c.granted = granted
	close(c.done)
}

// grant counts the waiting charges that fit. Small ones may pass larger ones: makeRoom
// evicts enough accounts for all of them. The caller holds mu.
func (p *Pool) grant() {
	p.waiting = slices.DeleteFunc(p.waiting, func(c *claim) bool {
		if !p.fits(c.n) {
			return false
		}
		c.account.add(c.n)
		p.end(c, true)
		return true
	})
}
