package cudaipc

// stage begins to copy chunks of the tensors to be sent to slots. Several tensors take turns in the
// native dialect. The caller holds mu.
func (e *basicEnd) stage() {
	for e.sendQueue.Len() > 0 && e.ending == nil && e.fatal == nil {
		op := e.sendQueue.Front()
		if op.err != nil {
			e.sendQueue.Pop()
			continue
		}
		if !op.usable {
			return
		}
		c, err := e.nextChunk(op)
		if c == nil && err == nil {
			return
		}
		if err == nil && c.slot != nil {
			err = e.copyChunk(c)
		}
		if err != nil {
			e.dropChunk(c)
			e.fault(op, err)
			continue
		}
		e.staging.Push(c)
		if e.link.Native || op.begun == op.length {
			e.sendQueue.Pop()
			if op.begun < op.length {
				e.sendQueue.Push(op)
			}
		}
	}
}

// takeStaged returns the chunks that can be sent, in order. The caller holds mu.
func (e *basicEnd) takeStaged() (ready []*basicChunk) {
	for e.staging.Len() > 0 && e.copied(e.staging.Front()) {
		c := e.staging.Pop()
		if c.op.err != nil {
			e.dropChunk(c)
			continue
		}
		ready = append(ready, c)
	}
	return ready
}

// write passes chunks to the host channel, and writes the frames that announce them and others. The
// order of the two is that of the dialect: TensorPipe's receiver must get the announcement of a chunk
// that was sent, even if this end closes then; the native one may not begin to receive before. The
// caller holds mu, which write releases while it writes.
func (e *basicEnd) write(chunks []*basicChunk) error {
	if e.link.Native {
		for _, c := range chunks {
			e.frames.add(frameStaged, c.op.id)
			e.send(c)
		}
		chunks = nil
	} else {
		e.frames = append(e.frames, make(controlFrames, len(chunks))...)
	}
	frames := e.frames
	e.frames = nil
	var err error
	if len(frames) > 0 && !e.unwritable {
		e.mu.Unlock()
		err = e.control.WriteFrames(frames...)
		e.mu.Lock()
	}
	for _, c := range chunks {
		if e.ended || e.unwritable || err != nil {
			e.dropChunk(c)
			e.conclude(c.op)
		} else {
			e.send(c)
		}
	}
	return err
}

// send passes c to the host channel. The caller holds mu.
func (e *basicEnd) send(c *basicChunk) {
	c.id = e.hostID(e.sentChunks, e.role)
	e.sentChunks++
	c.op.subs = append(c.op.subs, c.id)
	e.host.Send(c.id, c.memory(), func(err error) { e.moved(c, err) })
}
