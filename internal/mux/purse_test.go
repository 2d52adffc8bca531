package mux_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// purse is a budget that remembers how it was used.
type purse struct {
	size int

	mu      sync.Mutex
	out     int
	most    int // that was ever out
	refused int
	wrong   bool // more came back than was out
}

func (p *purse) Acquire(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > p.size-p.out {
		p.refused++
		return false
	}
	p.out += n
	p.most = max(p.most, p.out)
	return true
}

func (p *purse) Release(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out -= n
	p.wrong = p.wrong || n <= 0 || p.out < 0
}

func (p *purse) lent() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out
}

// requireWhole wants back what was lent.
func (p *purse) requireWhole(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Zero(t, p.out)
	require.False(t, p.wrong, "something came back twice")
}
