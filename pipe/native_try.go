package pipe

func (p *nativePipe) tryWrite(m *Message) (bool, error) { return p.out.trySend(m) }

// trySend is send of a message that is copied at once. It takes none that would have
// to wait for room, or of which something would wait where it lies.
func (o *nativeOutbox) trySend(m *Message) (taken bool, err error) {
	size, err := o.check(m)
	if err != nil || size.asked.Messages > 0 && o.pipe.compresses {
		return false, err
	}
	cost := o.cost(&size)
	if !o.pipe.account.TryCharge(0) || !o.room.tryAcquire(cost) {
		return false, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err = o.refusal; err == nil {
		taken = o.copyOut(m, &size)
	}
	if taken {
		o.writePromptly(m.More)
	} else {
		o.room.release(cost)
	}
	return taken, err
}

// copyOut numbers a message and copies all of it, if nothing of it is large. The
// caller holds mu.
func (o *nativeOutbox) copyOut(m *Message, size *sizer) bool {
	defer o.frame.Forget()
	if o.describe(m, size, nil) > 0 {
		return false
	}
	o.count++
	o.countPacking(size, nil)
	o.traffic.add(size.data)
	o.writeOut(m, nil, false, o.settleCost(size, nil))
	return true
}
