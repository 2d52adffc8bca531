package cudaipc

import (
	"errors"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

// use records that work on stream has used b, whose own stream is another one.
func (a *allocator) use(b *block, stream driver.Stream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(b.others, stream) {
		b.others = append(b.others, stream)
	}
}

// put frees b, which is not used after the present work of its streams. It does not wait. After
// Close it does nothing.
func (a *allocator) put(b *block) {
	if a.gpu.enter() != nil {
		return // closed, or the device has failed
	}
	defer a.gpu.leave()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.stats.Frees++
	a.stats.InUse -= b.size
	a.collectAt = min(a.collectAt, a.stats.InUse+max(a.stats.InUse, collectGrowth))
	b.uses = len(b.others)
	for _, s := range b.others {
		if err := a.pending.add(b, s); err != nil {
			return // the device has failed: the block is not used again
		}
	}
	b.others = nil
	if b.uses > 0 {
		a.stats.Pending += b.size
		return
	}
	a.merge(b)
}

// collect frees the pending blocks of which all uses have ended. It polls at most the given number of
// streams.
func (a *allocator) collect(streams int) {
	a.pending.collect(streams, func(b *block) {
		if b.uses--; b.uses == 0 {
			a.stats.Pending -= b.size
			a.merge(b)
		}
	})
}

// merge joins b with its free neighbours of the same stream, and inserts the result.
func (a *allocator) merge(b *block) {
	if p := b.prev; p != nil && p.free && p.stream == b.stream {
		a.remove(p)
		p.size += b.size
		p.next = b.next
		if b.next != nil {
			b.next.prev = p
		}
		b = p
	}
	if n := b.next; n != nil && n.free && n.stream == b.stream {
		a.remove(n)
		b.size += n.size
		b.next = n.next
		if n.next != nil {
			n.next.prev = b
		}
	}
	a.insert(b)
}

// trim returns segments without used blocks to the driver, which waits for the device. Segments that
// another process may have mapped stay. Allocations go on meanwhile.
func (a *allocator) trim() error {
	var all []error
	waited := make(map[driver.Stream]bool)
	for _, b := range a.unused() {
		if !waited[b.stream] { // the driver's documentation does not promise that cuMemFree waits
			waited[b.stream] = true
			all = append(all, a.gpu.driver.SyncStream(b.stream))
		}
		all = append(all, a.gpu.driver.Free(b.segment.base))
	}
	return errors.Join(all...)
}

// unused removes the segments without used blocks, and returns the free block of each. It joins free
// blocks of streams without work at first, which may be parts of one segment.
func (a *allocator) unused() (out []*block) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.collect(a.pending.all())
	var idle []*block
	for stream, list := range a.free {
		if done, err := a.gpu.driver.StreamDone(stream); done && err == nil {
			idle = append(idle, list...)
			delete(a.free, stream)
		}
	}
	for _, b := range idle {
		b.free = false
	}
	for _, b := range idle {
		b.stream = idle[0].stream
		a.merge(b)
	}
	for stream, list := range a.free {
		a.free[stream] = slices.DeleteFunc(list, func(b *block) bool {
			if b.size != b.segment.size || a.exported(b.segment) {
				return false
			}
			out = append(out, b)
			a.segments = slices.DeleteFunc(a.segments, func(s *segment) bool { return s == b.segment })
			a.stats.Segments--
			a.stats.Held -= b.size
			return true
		})
	}
	return out
}

// close frees all segments, except those that another process may have mapped, and reports whether
// there are such. The device must have no work left.
func (a *allocator) close() (exported bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	var all []error
	for _, s := range a.segments {
		if a.exported(s) {
			exported = true
			continue
		}
		all = append(all, a.gpu.driver.Free(s.base))
	}
	a.segments, a.free, a.pending = nil, nil, pendingUses[*block]{}
	return exported, errors.Join(all...)
}
