package cudaipc

import (
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// ring is the page-locked memory for the copies of one GPU in one direction, and the stream on which
// they run. Its memory comes from the pinned pool of the GPU.
//
// Only chunks whose copy can run at once occupy slots: the copy out of the GPU once the tensor is
// written, the copy into it once the target may be overwritten. A slot of a sender waits for one of the
// receiver, but a slot of a receiver only for bytes that its peer has in memory. So slots become free
// whatever order tensors and streams have.
type ring struct {
	gpu *gpu

	mu      sync.Mutex
	stream  *Stream // nil before the first use
	used    int     // bytes of slots
	waiting []*basicEnd
}

// ringSlot is page-locked memory of a ring that holds one chunk.
type ringSlot struct {
	ring  *ring
	block *pinnedBlock
}

// take returns a slot of at least size bytes for e. If the ring has no more memory it returns nil, and
// wakes e later. If first is set, because e has no slot of the ring, it always returns a slot. The
// first call initialises the GPU. The error is that of the driver or ErrClosed.
func (r *ring) take(e *basicEnd, size int, first bool) (*ringSlot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !first && r.used+size > ringSize {
		if !slices.Contains(r.waiting, e) {
			r.waiting = append(r.waiting, e)
		}
		return nil, nil
	}
	if r.stream == nil {
		s, err := r.gpu.newStream()
		if err != nil {
			return nil, err
		}
		r.stream = s
	}
	if err := r.gpu.enter(); err != nil {
		return nil, err
	}
	defer r.gpu.leave()
	b, err := r.gpu.pinned.take(size)
	if err != nil {
		return nil, err
	}
	r.used += len(b.data)
	return &ringSlot{ring: r, block: b}, nil
}

// copy enqueues a copy of n bytes between a slot and m, memory of the GPU, on the stream of the ring,
// and returns an event that completes after it.
func (r *ring) copy(dst, src driver.Ptr, n int, m *Memory) (device.Event, error) {
	if err := r.gpu.enter(); err != nil {
		return nil, err
	}
	defer r.gpu.leave()
	if err := r.gpu.driver.Copy(dst, src, n, r.stream.handle); err != nil {
		return nil, err
	}
	m.usedOn(r.stream)
	return r.stream.Record()
}

// free returns s to its ring, and wakes a channel that waits for it. If the copy of s may be running,
// the memory is used again only after the present work of the ring's stream.
func (s *ringSlot) free(running bool) {
	r := s.ring
	if !running {
		r.gpu.pinned.putIdle(s.block)
	} else if r.gpu.enter() == nil { // otherwise the kind is closed
		r.gpu.pinned.put(s.block, r.stream.handle)
		r.gpu.leave()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used -= len(s.block.data)
	if len(r.waiting) > 0 {
		next := r.waiting[0]
		r.waiting = slices.Delete(r.waiting, 0, 1)
		next.wake()
	}
}

// forget removes e from the channels that wait. It is not woken after that.
func (r *ring) forget(e *basicEnd) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = slices.DeleteFunc(r.waiting, func(other *basicEnd) bool { return other == e })
}
