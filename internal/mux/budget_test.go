package mux_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// recordingBudget is a budget that records its use.
type recordingBudget struct {
	size int

	mu        sync.Mutex
	out       int
	maxWindow int // that was ever out
	refusals  int
	wrong     bool // more was released than acquired
}

func (p *recordingBudget) Acquire(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > p.size-p.out {
		p.refusals++
		return false
	}
	p.out += n
	p.maxWindow = max(p.maxWindow, p.out)
	return true
}

func (p *recordingBudget) Release(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out -= n
	p.wrong = p.wrong || n <= 0 || p.out < 0
}

func (p *recordingBudget) inUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out
}

// requireReleased checks that all bytes acquired from p were released, none of them twice.
func (p *recordingBudget) requireReleased(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Zero(t, p.out)
	require.False(t, p.wrong, "something came back twice")
}
