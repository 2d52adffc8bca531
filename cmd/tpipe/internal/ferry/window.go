package ferry

import (
	"context"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// What one transfer has in flight at each end. A tensor larger than windowBytes
// is in flight alone, so that an end takes no more memory than the larger of
// the two.
const (
	windowBytes = 128 << 20
	windowSlots = 32 // tensors
)

// newPool makes a pool for what is in flight. It keeps memory for as many bytes
// as one transfer uses, unless it has a larger tensor.
func newPool() *tensor.Pool { return tensor.NewPool(tensor.PoolOptions{IdleLimit: windowBytes}) }

// window bounds what is in flight. One goroutine enters, any number leave.
type window struct {
	mu    sync.Mutex
	bytes int // in flight
	slots int
	left  chan struct{} // somebody has left
}

func newWindow() *window { return &window{left: make(chan struct{}, 1)} }

// enter waits until n more bytes fit, or ctx ends.
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

// leave gives back the n bytes of one that entered.
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
