package pipe

// TryNext is Next without blocking: it spins for some microseconds, as Next does before it blocks,
// and returns nil without an error if no message arrives in that time. After the last message it
// returns the error of Next. A message that has been received is returned at once. Through shared
// memory in the native dialect TryNext also receives messages itself, without a switch of
// goroutines; on other paths only a goroutine of the pipe does.
func (p *Pipe) TryNext() (*Incoming, error) {
	if p.isClosing() {
		return nil, p.errorFor("next", "", ErrClosed)
	}
	in, err := p.engine.tryNext()
	if err != nil && p.isClosing() {
		err = p.errorFor("next", "", ErrClosed) // as in Next
	}
	return in, err
}

// NextCh returns a channel that a goroutine can use in a select. The pipe sends the next message to
// it, instead of returning it from Next, if a goroutine is receiving from the channel at that moment
// and all earlier messages have been returned. The pipe never waits for a receiver and never closes
// the channel, so another goroutine must be in Next.
func (p *Pipe) NextCh() <-chan *Incoming { return p.nextCh }

// sendNext passes in to a goroutine that is receiving from NextCh. It does not block: if there is no
// such goroutine it reports false, and the caller keeps in.
func (p *Pipe) sendNext(in *Incoming) bool {
	select {
	case p.nextCh <- in:
		return true
	default:
		return false
	}
}

// Inline reports whether all parts of the message are inline. Read then waits at most for bytes
// that precede all later messages of the pipe, so reading the message on another goroutine does not
// let later ones overtake it.
func (in *Incoming) Inline() bool { return in.of.isInline() }

// TryWrite is Write without blocking, and reports whether it has accepted m. It accepts messages
// that the native dialect copies, while the limits on bytes in flight allow it and no other writer
// waits for them; in the compatible dialect it accepts none. The memory of m may be reused when
// TryWrite returns. If m is not accepted and the error is nil, Write may still be able to send it.
func (p *Pipe) TryWrite(m *Message) (taken bool, err error) {
	if e := p.events; e != nil && e.MessageWritten != nil {
		info := p.beginWritten(m)
		if taken, err = p.engine.tryWrite(m); taken || err != nil {
			_ = p.reportWritten(info, err)
		}
		return taken, err
	}
	return p.engine.tryWrite(m)
}
