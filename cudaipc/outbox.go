package cudaipc

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// The slots of an outbox are those of TensorPipe.
const (
	slotCount = 4
	slotSize  = 8 << 20
)

// outbox is memory of one GPU through which all channels in the compatible dialect send. It exists
// until the Kind is closed.
type outbox struct {
	gpu    *gpu
	base   driver.Ptr
	memory driver.IPCHandle
	events [slotCount]*sharedEvent
	free   chan int // indices of slots

	mu        sync.Mutex
	importers []importer
	retired   []retiredSlot
}

// slot is a slot of an outbox.
type slot struct {
	outbox *outbox
	index  int
}

// retiredSlot is a slot that its peer may still read. It is free when the peer is gone.
type retiredSlot struct {
	index int
	end   importer
}

// takeOutbox returns the outbox of g, which the peer of end may map. It is allocated when it is first
// needed.
func (g *gpu) takeOutbox(end importer) (*outbox, error) {
	if err := g.enter(); err != nil {
		return nil, err
	}
	defer g.leave()
	g.outboxMu.Lock()
	defer g.outboxMu.Unlock()
	if g.outbox == nil {
		b, err := g.newOutbox()
		if err != nil {
			return nil, err
		}
		g.outbox = b
	}
	g.outbox.mu.Lock()
	defer g.outbox.mu.Unlock()
	if !slices.Contains(g.outbox.importers, end) {
		g.outbox.importers = append(slices.DeleteFunc(g.outbox.importers, importer.gone), end)
	}
	return g.outbox, nil
}

// newOutbox allocates an outbox. The context must be current.
func (g *gpu) newOutbox() (_ *outbox, err error) {
	b := &outbox{gpu: g, free: make(chan int, slotCount)}
	if b.base, err = g.driver.Alloc(slotCount * slotSize); err != nil {
		return nil, err
	}
	b.memory, err = g.driver.MemHandle(b.base)
	for i := range b.events {
		if err == nil {
			b.events[i], err = g.newSharedEvent()
			b.free <- i
		}
	}
	if err != nil {
		_ = g.driver.Free(b.base)
		return nil, err
	}
	return b, nil
}

// describe returns what the peer needs to map b.
func (b *outbox) describe() *wire.CUDAIPCOutbox {
	d := &wire.CUDAIPCOutbox{Process: processName(), Memory: b.memory}
	for _, e := range b.events {
		d.Events = append(d.Events, e.ipc)
	}
	return d
}

// take returns the index of a free slot. It blocks until one is free or ctx ends; the error is the cause
// of ctx.
func (b *outbox) take(ctx context.Context) (int, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case i := <-b.free:
			return i, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-timer.C:
			b.reclaim()
			timer.Reset(lastQuery)
		}
	}
}

// put frees a slot.
func (b *outbox) put(index int) { b.free <- index }

// retire frees a slot when the peer of end is gone.
func (b *outbox) retire(index int, end importer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retired = append(b.retired, retiredSlot{index, end})
}

// reclaim frees the retired slots whose peers are gone.
func (b *outbox) reclaim() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retired = slices.DeleteFunc(b.retired, func(s retiredSlot) bool {
		gone := s.end.gone()
		if gone {
			b.put(s.index)
		}
		return gone
	})
}

// exchange enqueues work with the memory of a slot on s, after the last use of the slot and before the
// next one.
func (b *outbox) exchange(index int, s *Stream, work func(driver.Ptr) error) error {
	if err := b.gpu.enter(); err != nil {
		return err
	}
	defer b.gpu.leave()
	return exchange(b.gpu, b.events[index].handle, s, func() error {
		return work(b.base + driver.Ptr(index*slotSize))
	})
}

// close frees b, unless a peer may have mapped it, and reports whether one may have.
func (b *outbox) close() (exported bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.ContainsFunc(b.importers, func(i importer) bool { return !i.gone() }) {
		return false, b.gpu.driver.Free(b.base)
	}
	return true, nil
}
