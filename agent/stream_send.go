package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// sendOn sends value on s, see SendStream.Send. It blocks until the other end has granted enough
// credit, and while the pipe has no space. When it returns, the memory of value is free. The errors
// are those of stream.send. Only one goroutine sends at a time, others wait.
func sendOn[T any](s *stream, value T) error {
	s.sendLock.Lock()
	defer s.unlockSend()
	p, ok := s.value.(*T)
	if !ok {
		p = new(T)
		s.value = p
	}
	*p = value
	err := s.send(p)
	var zero T
	*p = zero // releases the memory of value
	return err
}

// send sends the value to which ptr points, or adds it to the batch. It returns io.EOF at the caller
// if the call has been replied to. Other errors are *Error, which wrap the reason for which the
// stream has failed, ErrSendClosed, or, if the value cannot be encoded, an error that matches
// ErrArguments at the caller and ErrResult at the called worker; the stream goes on after the
// latter. The caller holds s.sendLock.
func (s *stream) send(ptr any) error {
	out, err := s.encode(ptr)
	if err != nil {
		return s.wrapError(err)
	}
	if s.addToBatch(out) {
		s.conn.agent.outMessages.put(out)
		if len(s.batch) < maxBatch {
			return nil
		}
		return s.writeFailed(s.flush())
	}
	if err := s.flush(); err != nil {
		s.conn.agent.outMessages.put(out)
		return s.writeFailed(err)
	}
	n := out.bytes() + wire.StreamOverhead
	if err := s.acquireCredit(n); err != nil {
		s.conn.agent.outMessages.put(out)
		return s.wrapError(err)
	}
	if err := s.write(out, n); err != nil {
		return s.writeFailed(err)
	}
	s.mu.Lock()
	s.moved()
	s.mu.Unlock()
	return nil
}

// encode returns a message with the next data of the stream: the value to which ptr points. The
// message comes from the agent's pool and passes to the caller. The error matches ErrArguments at
// the caller and ErrResult at the called worker; the message is then nil.
func (s *stream) encode(ptr any) (*outMessage, error) {
	a := s.conn.agent
	kind, invalid := KindRequest, ErrArguments // by the kind the device map is chosen
	out := a.outMessages.get()
	if s.call == nil {
		kind, invalid = KindReply, ErrResult
		out.route = s.conn.replyRoute
	}
	out.begin(wire.AppendData(out.buf[:0], s.flags(), s.id, s.sent))
	out.view = Message{Kind: kind, Peer: s.conn.peer, encoder: out.encoder, key: CallKey{s.conn, s.id, s.call == nil}}
	err := a.values.Encode(out.encoder, ptr)
	if err == nil {
		var data []byte
		var tensors []pipe.Tensor
		if data, tensors, err = out.encoder.Finish(); err == nil {
			err = out.fill(s.ctx, data, tensors, a.devices)
		}
	}
	if err != nil {
		a.outMessages.put(out)
		return nil, withKind(invalid, err)
	}
	return out, nil
}

// acquireCredit blocks until a message may be sent that counts n bytes, takes them from the credit
// and counts the message as sent; with an n of 0 it only waits for the first credit. It returns
// io.EOF if the call has been replied to, ErrSendClosed after the end of sending, or the cause with
// which the stream has failed; then it takes nothing.
func (s *stream) acquireCredit(n int) error {
	for {
		s.mu.Lock()
		enough := s.started && (n == 0 || s.credit >= min(n, wire.StreamThreshold))
		closed, replied := s.sendClosed, s.replied
		if enough && !closed && !replied && s.ctx.Err() == nil {
			s.credit -= n
			if n > 0 {
				s.sent++ // endSending may be called while the message is written
			}
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		switch {
		case closed:
			return ErrSendClosed
		case replied:
			return io.EOF
		case s.ctx.Err() != nil:
			return ctxerr.Cause(s.ctx)
		}
		s.wait(s.credited)
	}
}

// write sends out, a message that counts n bytes, waits until its memory is free, and owns it. A
// large message, which may stay at this end until the receiver reads it, first waits until the budget
// for such messages has memory for it, so that receivers that do not read leave space in the pipe
// for other calls. The error is that of the pipe, of the context of the stream or of a stream of a device,
// or ErrUnreachable if the pipe has ended.
func (s *stream) write(out *outMessage, n int) error {
	c := s.conn
	small := out.small()
	if small {
		if taken, err := c.pipe.TryWrite(&out.message); taken || err != nil {
			return c.agent.outMessages.sent(out, err)
		}
	}
	defer s.beginWait()()
	if !small {
		if !c.streamBudget.Acquire(s.ctx, c.down, n) {
			c.agent.outMessages.put(out)
			return cmp.Or(ctxerr.Cause(s.ctx), c.pipe.Err(), ErrUnreachable)
		}
		defer c.streamBudget.Release(n)
	}
	return c.write(s.ctx, out)
}

// writeFailed fails the stream after writing has failed with err, and returns the error of the send:
// io.EOF if the call has been replied to, or an *Error that wraps the cause with which the stream
// has failed, or that of a lost pipe. If err is nil it does nothing and returns nil.
func (s *stream) writeFailed(err error) error {
	if err == nil {
		return nil
	}
	s.fail(err)
	s.mu.Lock()
	replied := s.replied
	s.mu.Unlock()
	if replied {
		return io.EOF
	}
	if s.conn.pipe.Err() != nil || s.conn.agent.isClosed() {
		return s.wrapError(s.conn.sendError(err))
	}
	return s.wrapError(ctxerr.Cause(s.ctx))
}

// closeSend sends the end of the data of the caller. It waits until the handler has started, and
// while the pipe has no space. It returns nil if the call has been replied to or the data have been
// ended before, and an *Error if the stream has failed.
func (s *stream) closeSend() error {
	s.sendLock.Lock()
	defer s.unlockSend()
	if err := s.acquireCredit(0); err == io.EOF || errors.Is(err, ErrSendClosed) {
		return nil
	} else if err != nil {
		return s.wrapError(err)
	}
	s.mu.Lock()
	s.sendClosed = true
	s.mu.Unlock()
	if err := s.flush(); err != nil {
		return s.endFailed(err)
	}
	m := &pipe.Message{Metadata: wire.AppendData(nil, wire.FlagCaller|wire.FlagEnd, s.id, s.sent)}
	taken, err := s.conn.pipe.TryWrite(m)
	if !taken && err == nil {
		defer s.beginWait()()
		err = s.conn.pipe.Write(s.ctx, m)
	}
	return s.endFailed(err)
}

// endFailed returns the error of closeSend after writing has failed with err, which may be nil.
func (s *stream) endFailed(err error) error {
	if err = s.writeFailed(err); err == io.EOF {
		return nil
	}
	return err
}

// endSending makes all later sends at the called worker fail with ErrSendClosed and returns the
// number of data that were sent or are in the batch.
func (s *stream) endSending() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sendClosed = true
	return s.sent
}

// addCredit adds n bytes to the credit and wakes a sender. The error matches ErrProtocol if the
// credit is then larger than any window.
func (s *stream) addCredit(n uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > maxCredit || s.credit > maxCredit-int(n) {
		return fmt.Errorf("%w: credit of %d bytes for a stream", ErrProtocol, n)
	}
	s.credit += int(n)
	s.started = true
	s.moved()
	notify(s.credited)
	return nil
}
