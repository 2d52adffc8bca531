package cudaipc

import (
	"cmp"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// maxDirect bounds the chunks of host memory that are in the host channel at a time, in each direction.
const maxDirect = 16

// basicChunk is a part of a tensor, at most chunkSize bytes.
type basicChunk struct {
	op     *basicOp
	offset int
	size   int
	id     uint64    // of the transfer of the host channel
	slot   *ringSlot // nil if the host channel uses the memory of op
	event  device.Event
}

// memory returns the memory for the host channel.
func (c *basicChunk) memory() device.Buffer {
	switch {
	case c.slot != nil:
		return device.Bytes(c.slot.block.data[:c.size])
	case c.op.scrap:
		return c.op.buf.Slice(0, c.size)
	}
	return c.op.buf.Slice(c.offset, c.size).WithStream(nil)
}

// nextChunk returns the next chunk of op. The chunk has a slot if the memory of op is that of a GPU. It
// returns nil if there is no slot, or the host channel has enough chunks without one; the goroutine is
// woken when that has changed. The caller holds mu.
func (e *basicEnd) nextChunk(op *basicOp) (*basicChunk, error) {
	c := &basicChunk{op: op, offset: op.begun, size: min(e.chunkSize, op.length-op.begun)}
	if op.ring == nil {
		if e.direct[op.send] == maxDirect || op.scrap && op.direct > 0 {
			return nil, nil
		}
		e.direct[op.send]++
		op.direct++
	} else {
		s, err := op.ring.take(e, c.size, e.held[op.ring] == 0)
		if s == nil || err != nil {
			return nil, err
		}
		c.slot = s
		e.held[op.ring]++
	}
	op.begun += c.size
	return c, nil
}

// copyChunk enqueues the copy between the slot of c and its tensor. The caller holds mu.
func (e *basicEnd) copyChunk(c *basicChunk) (err error) {
	op := c.op
	_, at, err := e.factory.kind.memoryOf(op.buf)
	if err != nil {
		return err
	}
	dst, src := at+driver.Ptr(c.offset), driver.HostPtr(c.slot.block.data)
	if op.send {
		dst, src = src, dst
	}
	if c.event, err = op.ring.copy(dst, src, c.size, op.memory); err == nil {
		op.copying++
	}
	return err
}

// copied reports whether the copy of c has completed, or c has none. If it has failed, its tensor fails
// too. The caller holds mu.
func (e *basicEnd) copied(c *basicChunk) bool {
	if c.event == nil {
		return true
	}
	done, err := c.event.Done()
	if !done {
		return false
	}
	c.event.Release()
	c.event = nil
	c.op.copying--
	if err != nil {
		e.fault(c.op, err)
	}
	return true
}

// moved is called when the host channel has moved c, or has failed with err.
func (e *basicEnd) moved(c *basicChunk, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	op := c.op
	op.subs = slices.DeleteFunc(op.subs, func(id uint64) bool { return id == c.id })
	if !op.send {
		e.receiving--
	}
	if err == nil && !op.send && c.slot != nil && op.err == nil && !e.ended {
		e.arrived.Push(c)
		e.wake()
		return
	}
	e.dropChunk(c)
	switch {
	case err == nil:
		op.moved += c.size
	case e.lifecycle.Err() != nil:
		op.err = cmp.Or(op.err, e.lifecycle.Err())
	case op.err == nil:
		e.fault(op, err)
	}
	e.conclude(op)
	e.wake()
}

// dropChunk ends the use of memory by c, which is not in the host channel. c may be nil. The caller
// holds mu.
func (e *basicEnd) dropChunk(c *basicChunk) {
	switch {
	case c == nil:
	case c.slot == nil:
		e.direct[c.op.send]--
		c.op.direct--
	default:
		e.held[c.slot.ring]--
		c.slot.free(c.event != nil)
		c.slot = nil
		if c.event != nil {
			c.event.Release()
			c.event = nil
		}
	}
}
