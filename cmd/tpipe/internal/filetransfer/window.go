package filetransfer

import (
	"context"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Bounds of the tensors that one transfer has in flight at each end. A tensor larger than
// windowBytes is in flight alone, so that the memory of a transfer is at most the larger of both.
const (
	windowBytes = 128 << 20
	windowSlots = 32 // tensors
)

// newPool returns a pool for tensors in flight, which keeps up to windowBytes of idle memory.
func newPool() *tensor.Pool { return tensor.NewPool(tensor.PoolOptions{IdleLimit: windowBytes}) }

// window bounds the tensors of one transfer that are in flight. One goroutine calls enter, any number
// call leave.
type window struct {
	mu    sync.Mutex
	bytes int // in flight
	slots int
	left  chan struct{} // receives after a leave
}

func newWindow() *window { return &window{left: make(chan struct{}, 1)} }

// enter blocks until a tensor of n bytes fits into the window, and counts it until leave. When ctx ends
// it returns the cause of ctx. It may have counted the tensor then, so the window must not be used any
// more.
func (w *window) enter(ctx context.Context, n int) error {
	for !w.tryEnter(n) {
		select {
		case <-w.left:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return context.Cause(ctx)
}

// tryEnter counts a tensor of n bytes and returns true if it fits into the window. Otherwise it returns
// false. Any tensor fits into an empty window.
func (w *window) tryEnter(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.slots > 0 && (w.slots == windowSlots || n > windowBytes-w.bytes) {
		return false
	}
	w.slots++
	w.bytes += n
	return true
}

// leave removes a tensor of n bytes that enter has counted.
func (w *window) leave(n int) {
	w.mu.Lock()
	w.slots--
	w.bytes -= n
	w.mu.Unlock()
	select {
	case w.left <- struct{}{}:
	default:
	}
}
