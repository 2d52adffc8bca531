// Package budget shares a number of bytes, or of anything, among many.
package budget

import (
	"container/list"
	"context"
	"sync"
)

// Budget is a number of bytes that many share: who wants some waits in line
// until it is free. A demand larger than the whole is served when nothing else
// is out, so that nobody waits for ever.
type Budget struct {
	size int

	mu      sync.Mutex
	out     int
	waiters list.List // of *claim
}

// claim is one waiter in line.
type claim struct {
	n       int
	granted chan struct{}
}

// New makes a Budget of size.
func New(size int) *Budget { return &Budget{size: size} }

// Size is the whole.
func (b *Budget) Size() int { return b.size }

// TryAcquire takes n if it is free and nobody waits.
func (b *Budget) TryAcquire(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters.Len() > 0 || !b.fits(n) {
		return false
	}
	b.out += n
	return true
}

// Acquire takes n, waiting until it is free, ctx ends or stop is closed. It
// reports false if it took nothing.
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

// withdraw leaves the line, unless the claim was granted in the meantime; then
// it stands, since the caller finds out about its end soon enough.
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

func (b *Budget) Release(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out -= n
	b.grant()
}

// InUse is the number of bytes taken.
func (b *Budget) InUse() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out
}

func (b *Budget) fits(n int) bool { return b.out == 0 || n <= b.size-b.out }

// grant serves the line from its front as far as the free bytes go.
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
