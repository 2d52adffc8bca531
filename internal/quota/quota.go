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

// New returns a Pool of size bytes, or nil, which is unlimited, if size is not above 0.
func New(size int) *Pool {
	if size <= 0 {
		return nil
	}
	return &Pool{size: size}
}

// Open returns a new account that holds nothing, or nil if p is nil. The caller must close it. If the
// account is evicted, evict is called once, on its own goroutine. evict must cause the peer's memory to
// be released and Close to be called after that.
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

// Used returns the bytes that are charged, those of evicted accounts included, and the number of
// accounts evicted so far.
func (p *Pool) Used() (bytes int, evicted uint64) {
	if p == nil {
		return 0, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used, p.evicted
}

// OnEvict replaces the function that is called when a is evicted, and reports true. It reports false if
// a was evicted before: then only the earlier function is called.
func (a *Account) OnEvict(evict func()) bool {
	if a == nil {
		return true
	}
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	a.evict = evict
	return !a.isRevoked()
}

// Charge charges n bytes to a and reports true. Callers charge memory before they allocate it. If the
// pool has too few free bytes, Charge evicts the accounts that hold most, possibly a itself, and blocks
// until enough of the evicted accounts are closed. If a is evicted, it charges nothing and reports
// false. If a is closed or nil, it charges nothing and reports true.
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

// TryCharge charges n bytes to a if the pool has them, and reports whether it did. It evicts no account
// and does not block. If a is evicted, it reports false. If a is closed or nil, it charges nothing and
// reports true.
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

// Add charges n bytes to a without blocking. It is for small amounts and for callers that hold locks.
// It may evict accounts, and the pool may be exceeded until those are closed. If a is closed or nil,
// Add does nothing.
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

// Release returns n bytes that were charged or added. After Close it does nothing, because Close has
// returned all bytes.
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

// Close returns all bytes that the account holds to the pool, because the peer is now trusted or its
// memory is free. Unless the account was evicted, waiting and later calls of Charge report true and
// charge nothing. Further calls of Close do nothing.
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

// evictForWaiting evicts accounts, the largest first, until all waiting charges will fit once the
// evicted accounts are closed. The caller holds mu.
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

// endClaims ends the waiting calls of Charge on a, which return granted. It charges no bytes. The
// caller holds mu.
func (p *Pool) endClaims(a *Account, granted bool) {
	p.waiting = slices.DeleteFunc(p.waiting, func(c *claim) bool {
		if c.account == a {
			p.end(c, granted)
		}
		return c.account == a
	})
}

// end removes the waiting charge c from the sums and makes its call of Charge return granted. It
// charges no bytes and does not change p.waiting. The caller holds mu.
func (p *Pool) end(c *claim, granted bool) {
	p.wanted -= c.n
	c.account.wanted -= c.n
	c.granted = granted
	close(c.done)
}

// grant charges the bytes of the waiting charges that fit, and makes their calls of Charge return true.
// Small charges may be granted before larger ones that have waited longer: evictForWaiting evicts
// enough accounts for all of them. The caller holds mu.
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
