package cudaipc

import "slices"

// receive passes memory for the chunks that the peer has staged to the host channel. In the compatible
// dialect it passes host memory before the chunks are announced. The caller holds mu.
func (e *basicEnd) receive() {
	for e.staged.Len() > 0 {
		next := e.staged.Front()
		if next.op.err == nil {
			c, err := e.nextChunk(next.op)
			if c == nil && err == nil {
				return
			}
			if err != nil {
				e.fault(next.op, err)
			} else {
				e.receiveChunk(c, next.id)
			}
		}
		e.staged.Pop()
	}
	for e.recvQueue.Len() > 0 {
		op := e.recvQueue.Front()
		if op.err != nil || !op.usable || op.ring != nil && e.announced <= e.receivedChunks {
			return
		}
		c, err := e.nextChunk(op)
		if err != nil {
			e.fault(op, err)
		}
		if c == nil {
			return
		}
		e.receiveChunk(c, e.hostID(e.receivedChunks, 1-e.role))
		e.receivedChunks++
		if op.begun == op.length {
			e.recvQueue.Pop()
		}
	}
}

// receiveChunk passes the memory of c to the host channel. The caller holds mu.
func (e *basicEnd) receiveChunk(c *basicChunk, id uint64) {
	c.id = id
	c.op.subs = append(c.op.subs, id)
	e.receiving++
	e.host.Recv(id, c.memory(), func(err error) { e.moved(c, err) })
}

// drainArrived enqueues the copies of received chunks. The caller holds mu.
func (e *basicEnd) drainArrived() {
	for e.arrived.Len() > 0 {
		c := e.arrived.Pop()
		op := c.op
		if op.err == nil {
			if err := e.copyChunk(c); err != nil {
				e.fault(op, err)
			}
		}
		if c.event == nil {
			e.dropChunk(c)
			continue
		}
		e.draining = append(e.draining, c)
		op.moved += c.size
		e.conclude(op)
	}
}

// pollDraining frees the slots whose copy has completed. The caller holds mu.
func (e *basicEnd) pollDraining() {
	e.draining = slices.DeleteFunc(e.draining, func(c *basicChunk) bool {
		if !e.copied(c) {
			return false
		}
		e.dropChunk(c)
		e.conclude(c.op)
		return true
	})
}
