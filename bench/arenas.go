package bench

import "sync"

// arenas lends an arena to a pipe while a batch lasts: what the pipes of a
// process cost shall not depend on what they once carried.
type arenas struct {
	buffers string // as in Spec
	contents

	mu   sync.Mutex
	free []*arena
}

func (a *arenas) take() *arena {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.free)
	if n == 0 {
		return &arena{buffers: a.buffers, contents: a.contents}
	}
	last := a.free[n-1]
	a.free = a.free[:n-1]
	return last
}

// give is for arenas that no message uses any more.
func (a *arenas) give(m *arena) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free = append(a.free, m)
}
