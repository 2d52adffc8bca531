package rref

import (
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// maxRefused bounds the forks that a worker refuses. Beyond it the oldest are forgotten.
const maxRefused = 1 << 16

// refusedForks is the forks that were declared lost before they arrived. They are refused for four
// leases. The zero value is empty.
type refusedForks struct {
	known map[forkID]struct{}
	order fifo.Queue[refusedFork]
}

type refusedFork struct {
	id    forkID
	until time.Time
}

func (f *refusedForks) has(id forkID) bool {
	_, ok := f.known[id]
	return ok
}

// add makes the fork refused from now on, and forgets those whose time is over.
func (f *refusedForks) add(id forkID, lease time.Duration) {
	now := time.Now()
	for f.order.Len() > 0 && (now.After(f.order.Front().until) || f.order.Len() >= maxRefused) {
		delete(f.known, f.order.Pop().id)
	}
	if f.has(id) {
		return
	}
	if f.known == nil {
		f.known = map[forkID]struct{}{}
	}
	f.known[id] = struct{}{}
	f.order.Push(refusedFork{id, now.Add(4 * lease)})
}
