package cudaipc

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// The slots of an outbox are those of TensorPipe.
const (
	slotCount = 4
	slotSize  = 8 << 20
)

// outbox is memory of one GPU through which one end in the compatible dialect sends. TensorPipe has one
// for all channels; with one for each, a peer that stops cannot take slots from others.
type outbox struct {
	gpu    *gpu
	number int
	base   driver.Ptr
	memory driver.IPCHandle
	events [slotCount]*sharedEvent
	free   chan int // indices of slots

	readers [slotCount]*stagedEnd // the last user of each slot, whose peer copies out of it
	writers [slotCount]*Stream    // the stream on which this process last copied into each slot

	described bool       // to the peer of the present user
	last      *stagedEnd // the last user; nil if its peer reads no slot any more
	users     processes  // that may have mapped it
}

// maxOutboxes bounds the outboxes of a GPU.
const maxOutboxes = 128

// takeOutbox returns an outbox of g for end: one whose last peer reads it no more, or a new one.
func (g *gpu) takeOutbox(end *stagedEnd) (*outbox, error) {
	if err := g.enter(); err != nil {
		return nil, err
	}
	defer g.leave()
	g.outboxMu.Lock()
	defer g.outboxMu.Unlock()
	i := slices.IndexFunc(g.idle, (*outbox).unread)
	if i < 0 && len(g.outboxes) >= maxOutboxes {
		return nil, fmt.Errorf("cudaipc: %v has %d outboxes, which peers may still read: %w", g.device, maxOutboxes, ErrOutOfMemory)
	}
	if i >= 0 {
		b := g.idle[i]
		g.idle = slices.Delete(g.idle, i, i+1)
		b.reset(end)
		return b, nil
	}
	b, err := g.newOutbox()
	if err != nil {
		return nil, err
	}
	g.outboxes = append(g.outboxes, b)
	b.reset(end)
	return b, nil
}

// putOutbox keeps b for other ends. end is its user if the peer of that may still read slots, and
// otherwise nil.
func (g *gpu) putOutbox(b *outbox, end *stagedEnd) {
	g.outboxMu.Lock()
	defer g.outboxMu.Unlock()
	b.last = end
	g.idle = append(g.idle, b)
}

// unread reports whether no peer reads a slot of b.
func (b *outbox) unread() bool { return b.last == nil || b.last.gone() }

// newOutbox allocates an outbox. The context must be current, and the caller holds outboxMu.
func (g *gpu) newOutbox() (_ *outbox, err error) {
	b := &outbox{gpu: g, number: len(g.outboxes)}
	if b.base, err = g.driver.Alloc(slotCount * slotSize); err != nil {
		return nil, err
	}
	made := 0
	defer func() {
		if err != nil {
			g.keepUnshared(b.events[:made])
			_ = g.driver.Free(b.base)
		}
	}()
	if b.memory, err = g.memHandle(b.base); err != nil {
		return nil, err
	}
	for ; made < slotCount; made++ {
		if b.events[made], err = g.newSharedEvent(); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// reset makes all slots free for the new user end.
func (b *outbox) reset(end *stagedEnd) {
	b.free = make(chan int, slotCount)
	for i := range slotCount {
		b.free <- i
	}
	b.described, b.last = false, nil
	b.users.add(end.peer)
}

// describe returns the handles by which the peer maps b, in the first call for a user, and otherwise
// nil. TensorPipe keeps mappings by the name of the process, so that each outbox has another one.
func (b *outbox) describe() *wire.CUDAIPCOutbox {
	if b.described {
		return nil
	}
	b.described = true
	d := &wire.CUDAIPCOutbox{Process: processName() + "_" + strconv.Itoa(b.number), Memory: b.memory}
	for _, e := range b.events {
		d.Events = append(d.Events, e.ipc)
	}
	return d
}

// exchange enqueues work of the user end, a copy to the memory of a slot, on s: after the last use of the
// slot and before the next one. It does not wait for the last copy of a process that has died, which never
// ends, but for the last copy of this process, which would overwrite the slot.
func (b *outbox) exchange(end *stagedEnd, index int, s *Stream, work func(driver.Ptr) error) error {
	if err := b.gpu.enter(); err != nil {
		return err
	}
	defer b.gpu.leave()
	event, last, writer := b.events[index].handle, b.readers[index], b.writers[index]
	b.readers[index], b.writers[index] = end, s
	if last != nil {
		var err error
		if last != end && last.dead() {
			err = s.WaitFor(writer)
		} else {
			err = b.gpu.driver.Wait(s.handle, event)
		}
		if err != nil {
			return err
		}
	}
	if err := work(b.base + driver.Ptr(index*slotSize)); err != nil {
		return err
	}
	return b.gpu.driver.Record(event, s.handle)
}

// closeOutboxes frees the outboxes, except those that another process may have mapped, and reports
// whether there are such. The context must be current.
func (g *gpu) closeOutboxes() (exported bool, err error) {
	g.outboxMu.Lock()
	defer g.outboxMu.Unlock()
	var all []error
	for _, b := range g.outboxes {
		if b.users.live() || g.kind.imports.mapped(b.memory) {
			exported = true
			continue
		}
		all = append(all, g.driver.Free(b.base))
	}
	g.outboxes, g.idle = nil, nil
	return exported, errors.Join(all...)
}
