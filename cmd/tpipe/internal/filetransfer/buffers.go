package filetransfer

import (
	"context"
	"sync"
)

// defaultMemory is the default of SendOptions.Memory and StoreOptions.Memory.
const defaultMemory = 64 << 20

// buffers is a bounded set of buffers of chunkBytes each, for the chunks that one transfer has in
// flight at one end. Its methods may be called concurrently.
type buffers struct {
	slots chan struct{} // one for each buffer in use

	mu   sync.Mutex
	free [][]byte
}

// newBuffers returns a set of as many buffers as fit into the given number of bytes, at least one.
// It allocates none of them yet. A number of 0 or less stands for defaultMemory.
func newBuffers(memory int) *buffers {
	if memory <= 0 {
		memory = defaultMemory
	}
	return &buffers{slots: make(chan struct{}, max(1, memory/chunkBytes))}
}

// acquire blocks until a buffer is free, and returns the buffer, which belongs to the caller until
// release is called. It prefers the buffer that was released last, which the processor's caches may
// still have. If ctx ends first, the error is the cause of ctx.
func (b *buffers) acquire(ctx context.Context) ([]byte, error) {
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if last := len(b.free) - 1; last >= 0 {
		buf := b.free[last]
		b.free = b.free[:last]
		return buf, nil
	}
	return make([]byte, chunkBytes), nil
}

// release makes buf, which acquire has returned, available to other calls of acquire.
func (b *buffers) release(buf []byte) {
	b.mu.Lock()
	b.free = append(b.free, buf)
	b.mu.Unlock()
	<-b.slots
}
