package cma

import "errors"

// reading is what an end knows of the goroutine that reads frames, and copies small
// tensors, for to hand one over takes as long. Where such a copy is stuck another
// goroutine reads on, and leaves all tensors to the crew until that copy has ended. It is
// guarded by the end.
type reading struct {
	alarm  alarm
	copies bool // a tensor is being copied by who reads, or did
	stuck  bool // it is, and somebody else reads
}

// begin reports whether who reads may copy a tensor, which counts from then on.
func (r *reading) begin() bool {
	if r.stuck {
		return false
	}
	r.copies = true
	r.alarm.set(true)
	return true
}

// end is that of the copy, and reports whether somebody else reads.
func (r *reading) end() (relieved bool) {
	relieved = r.stuck
	r.alarm.progress++
	r.copies, r.stuck = false, false
	return relieved
}

// errRelieved ends a goroutine that read, since another one does.
var errRelieved = errors.New("another goroutine reads")

// serveFrames reads until the end of the channel, or until another goroutine does.
func (e *nativeEnd) serveFrames() {
	if err := e.read(); err != errRelieved {
		e.life.Fail(e.explain(err))
	}
}

// look is what the alarm does while a tensor is copied by the goroutine that reads.
func (e *nativeEnd) look() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reading.alarm.rang() && e.reading.copies && !e.ended {
		e.reading.stuck = true
		e.life.Go(e.serveFrames)
		return
	}
	e.reading.alarm.set(e.reading.copies)
}

// read takes in what the peer says.
func (e *nativeEnd) read() error {
	frames := frameReader{conn: e.conn}
	var memory reader
	for {
		p, err := frames.next()
		if err != nil {
			return err
		}
		if p[0] != kindOffer {
			if err := e.takeWord(p); err != nil {
				return err
			}
			continue
		}
		o, err := decodeOffer(p)
		if err != nil {
			return err
		}
		if e.from != 0 && e.from != o.pid {
			return protocolError("an offer of process %d, by process %d", o.pid, e.from)
		}
		e.from = o.pid
		if err := e.takeOffer(o, &memory); err != nil {
			return err
		}
	}
}

func (e *nativeEnd) takeWord(p []byte) error {
	id, err := decodeWord(p)
	switch {
	case err != nil:
		return err
	case p[0] == kindCopied:
		return e.copied(id)
	case p[0] == kindWithdraw:
		e.withdrawn(id)
		return nil
	default:
		return protocolError("a frame of kind %d", p[0])
	}
}

// takeOffer copies what is small at once, if memory waits.
func (e *nativeEnd) takeOffer(o *offer, memory *reader) error {
	r, err := e.match(o)
	if r == nil {
		return err
	}
	e.finish(r, memory, memory.read(o.pid, r.Buf, o.pieces, 0, r.Buf.Len()))
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reading.end() {
		return errRelieved
	}
	return nil
}
