// Package budget shares a number of bytes, or of anything else, among many goroutines.
package budget

import (
	"container/list"
	"context"
	"sync"
)

// Budget is a number of bytes. A goroutine acquires some of them, blocks until they are free, and
// releases them later. Requests are granted in their order. A request for more than the whole
// budget is granted when nothing is in use, so that no request waits indefinitely. All methods may
// be called concurrently.
type Budget struct {
	size int

	mu      sync.Mutex
	out     int
	waiters list.List // of *claim
}

// claim is one waiting request for n bytes. granted is closed when they are acquired.
type claim struct {
	n       int
	granted chan struct{}
}

// New returns a Budget of size bytes, all free.
func New(size int) *Budget { return &Budget{size: size} }

// Size returns the size of the budget in bytes, acquired ones included.
func (b *Budget) Size() int { return b.size }

// TryAcquire acquires n bytes if no goroutine waits and the bytes are free or nothing is in use,
// and reports whether it did. It does not block. The caller returns the bytes with Release.
func (b *Budget) TryAcquire(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters.Len() > 0 || !b.fits(n) {
		return false
	}
	b.out += n
	return true
}

// Acquire acquires n bytes, which the caller returns with Release. It blocks until earlier requests
// are granted and the bytes are free or nothing is in use, ctx ends, or stop is closed. It returns
// true if it has acquired the bytes, which is possible even if ctx has ended or stop is closed, and
// false if it has acquired nothing.
func (b *Budget) Acquire(ctx context.Context, stop <-chan struct{}, n int) bool {
	if b.TryAcquire(n) {
		return true
	}
	c := &claim{n: n, granted: make(chan struct{})}
	b.mu.Lock()
	el := b.waiters.PushBack(c)
	b.grant()
	b.mu.Unlock()
	select {
	case <-c.granted:
		return true
	case <-ctx.Done():
	case <-stop:
	}
	return b.withdraw(el, c)
}

// withdraw removes the waiting request c, whose element in b.waiters is el, and returns false. If c
// was granted before, withdraw returns true: the caller then has the bytes and must release them.
// It acquires mu.
func (b *Budget) withdraw(el *list.Element, c *claim) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-c.granted:
		return true
	default:
	}
	b.waiters.Remove(el)
	b.grant()
	return false
}

// Release gives back n bytes that were acquired, and grants waiting requests in order as far as
// bytes are free.
func (b *Budget) Release(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out -= n
	b.grant()
}

// InUse returns the number of acquired bytes.
func (b *Budget) InUse() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out
}

func (b *Budget) fits(n int) bool { return b.out == 0 || n <= b.size-b.out }

// grant grants waiting requests in order as far as bytes are free. The caller holds mu.
func (b *Budget) grant() {
	for el := b.waiters.Front(); el != nil; el = b.waiters.Front() {
		c := el.Value.(*claim)
		if !b.fits(c.n) {
			return
		}
		b.out += c.n
		b.waiters.Remove(el)
		close(c.granted)
	}
}
