// Package quota bounds the memory that peers which are not yet trusted hold together.
//
// Peers share a [Pool] of bytes; each has an [Account]. When the pool is exhausted, the account
// that holds most is evicted. So a flood of connections costs the largest of them, and never a peer
// that holds little. An evicted account counts until it is closed, since its memory is in use until
// then; charges that need those bytes wait for that.
package quota

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Pool is a number of bytes that accounts share. A nil Pool is unlimited: its accounts are nil and
// count nothing.
type Pool struct {
	size int

	mu           sync.Mutex
	used         int        // bytes charged to all accounts, evicted ones included
	evictedBytes int        // of these, the bytes of evicted accounts
	wanted       int        // bytes for which charges wait
	waiting      []*claim   // those charges, oldest first
	open         []*Account // neither evicted nor closed, oldest first
	evicted      uint64
}

// Account is what one peer holds of a Pool. All methods may be called concurrently, and on a nil
// Account, which admits everything and counts nothing.
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
	counting         int32 = iota
	closed                 // charges succeed and count nothing
	revoked                // evicted: charges fail, held bytes count until Close
	evictedAndClosed       // evicted and closed
)

// claim is a call of Charge that waits. end closes done after it has set granted.
type claim struct {
	account *Account
	n       int
	granted bool
	done    chan struct{}
}

// New returns a Pool of size bytes. If size is 0 or negative it returns nil, which stands for an
// unlimited Pool.
func New(size int) *Pool {
	if size <= 0 {
		return nil
	}
	return &Pool{size: size}
}

// Open returns a new account that holds nothing. The caller must close it. If the account is
// evicted, evict is called once, on its own goroutine; it must cause the peer's memory to be
// released and Close of the account to be called after that. evict must not be nil. If p is nil,
// Open returns nil, which is an account without limit, and drops evict.
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

// Used returns the number of bytes that all accounts hold, including evicted accounts that are not
// closed, and the number of accounts evicted so far. If p is nil it returns 0 and 0.
func (p *Pool) Used() (bytes int, evicted uint64) {
	if p == nil {
		return 0, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used, p.evicted
}

// Admitted reports whether a is nil or was closed without having been evicted, so that it has no
// limit.
func (a *Account) Admitted() bool { return a == nil || a.state.Load() == closed }

// OnEvict makes evict the function that is called when a is evicted, instead of the previous one,
// and returns true. If a has already been evicted it returns false: only the previous function is
// or was called. If a is nil it returns true and drops evict.
func (a *Account) OnEvict(evict func()) bool {
	if a == nil {
		return true
	}
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	a.evict = evict
	return !a.isRevoked()
}

// Charge charges n bytes to a and returns true. Callers charge memory before they allocate it. If
// the pool does not have n bytes beyond those for which other charges wait, Charge evicts accounts
// as needed, those that hold most first, possibly a itself. It then blocks until the bytes are
// free. If a is evicted before or while Charge blocks, Charge charges nothing and returns false. If
// a is nil, or is closed before or during the call without having been evicted, Charge charges
// nothing and returns true.
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
	if p.fits(n) && p.used-p.evictedBytes+p.wanted+n <= p.size {
		a.add(n)
		p.mu.Unlock()
		return true
	}
	c := &claim{account: a, n: n, done: make(chan struct{})}
	p.waiting = append(p.waiting, c)
	p.wanted += n
	a.wanted += n
	p.evictForWaiting()
	p.grant()
	p.mu.Unlock()
	<-c.done
	return c.granted
}

// TryCharge charges n bytes to a and returns true if the pool has them free and no earlier charge
// waits for them. Otherwise it charges nothing and returns false. It evicts no account and does not
// block. If a is evicted it returns false. If a is nil, or closed without having been evicted, it
// charges nothing and returns true.
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
	if !p.fits(n) || p.used-p.evictedBytes+p.wanted+n > p.size {
		return false
	}
	a.add(n)
	return true
}

// Add charges n bytes to a without blocking, even if the pool does not have them. If the pool is
// exceeded then, Add evicts accounts, those that hold most first, possibly a itself; the pool stays
// exceeded until enough bytes are returned. If a was evicted before, Add charges the bytes and
// evicts none. It is for small amounts and for callers that hold locks. If a is nil or closed, Add
// does nothing.
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
		p.evictForWaiting()
	case revoked:
		a.add(n)
		p.evictedBytes += n
	}
}

// Release returns n bytes to the pool, which must have been charged to a with Charge, TryCharge or
// Add, and lets waiting charges continue that fit now. If a is nil or closed it does nothing,
// because Close has returned all bytes.
func (a *Account) Release(n int) {
	if a == nil || n == 0 || a.state.Load() == closed {
		return
	}
	p := a.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	switch a.state.Load() {
	case closed, evictedAndClosed:
		return // Close has returned everything
	case revoked:
		p.evictedBytes -= n
	}
	a.add(-n)
	p.grant()
}

// Close returns all bytes that a holds to the pool, because the peer is now trusted or its memory
// is free, and lets waiting charges continue that fit now. If a was not evicted, its own waiting
// and later calls of Charge return true and charge nothing; if it was evicted, they return false.
// Further calls of Close, and Close of a nil account, do nothing.
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
		p.endClaims(a, true)
	case revoked:
		p.evictedBytes -= a.held
		a.state.Store(evictedAndClosed)
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

// evictForWaiting evicts accounts, the one that holds most first, until all waiting charges will
// fit once the evicted accounts are closed, or no account is left. Bytes for which an account waits
// count as held; of equal accounts the newest is evicted. The waiting charges of an evicted account
// end without being charged. evict of each account is called on a new goroutine. The caller holds
// mu.
func (p *Pool) evictForWaiting() {
	for p.used-p.evictedBytes+p.wanted > p.size && len(p.open) > 0 {
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
		p.evictedBytes += largest.held
		p.evicted++
		p.endClaims(largest, false)
		go largest.evict()
	}
}

func (p *Pool) remove(a *Account) {
	i := slices.Index(p.open, a)
	p.open = slices.Delete(p.open, i, i+1)
}

// endClaims ends all waiting calls of Charge on a, without charging bytes, and makes them return
// granted. The caller holds mu.
func (p *Pool) endClaims(a *Account, granted bool) {
	p.waiting = slices.DeleteFunc(p.waiting, func(c *claim) bool {
		if c.account == a {
			p.end(c, granted)
		}
		return c.account == a
	})
}

// end makes c's waiting call of Charge return granted, and subtracts its bytes from those for which
// charges wait. It charges no bytes, and the caller must remove c from p.waiting. The caller holds
// mu.
func (p *Pool) end(c *claim, granted bool) {
	p.wanted -= c.n
	c.account.wanted -= c.n
	c.granted = granted
	close(c.done)
}

// grant charges each waiting charge that fits into the free bytes of the pool, and makes its call
// of Charge return true. A small charge may be granted before a larger one that has waited longer,
// because evictForWaiting evicts enough accounts for all of them. The caller holds mu.
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
