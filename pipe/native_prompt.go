package pipe

// promptRounds is how often who writes a block himself goes on with what others have
// written meanwhile.
const promptRounds = 4

// writePromptly writes what waits where that takes no waiting and nobody else is
// writing, so that a message leaves without a change of goroutines. What is left is for
// the run loop, and so is all that answers nothing, or where more messages follow or come
// several at a time: these leave better together. The caller holds mu, which is free
// meanwhile: what others write then leaves together too.
func (o *nativeOutbox) writePromptly(more bool) {
	if o.prompt == nil || o.direct() {
		return
	}
	if r := &o.pipe.in.reader; !r.came.Swap(false) || r.crowded.Load() || more {
		o.gathering.Store(true)
		o.signal()
		return
	}
	for range promptRounds {
		b := o.takePromptly()
		if b == nil {
			return
		}
		o.mu.Unlock()
		o.one[0] = b.data
		n, err := o.prompt.TryWrite(o.one[:]...)
		o.mu.Lock()
		if err != nil || n < len(b.data) { // an error comes again when the rest is written
			o.leave(b, n)
			return
		}
		o.writing = false
		o.recycle(b, o.stopped)
		o.settle()
	}
	o.signal()
}

// takePromptly takes the next block, if that need not wait for others.
func (o *nativeOutbox) takePromptly() *block {
	if o.stopped != nil || o.writing || o.blocks.Len() == 0 {
		return nil
	}
	o.writing = true
	return o.blocks.Pop()
}

// leave leaves a block of which n bytes have been written to the run loop.
func (o *nativeOutbox) leave(b *block, n int) {
	if o.stopped != nil {
		o.writing = false
		o.recycle(b, o.stopped)
		o.settle()
		return
	}
	b.data = append(b.data[:0], b.data[n:]...)
	o.rest = b
	o.signal()
}

// signalRun wakes the run loop, unless who wrote the message sees to it himself.
func (o *nativeOutbox) signalRun() {
	if o.prompt == nil || o.direct() {
		o.signal()
	}
}
