package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// receiveAll returns the values that the other end of s sends, in order, from the first one that
// has not been received. If the stream fails, or its call ends with an error, the last pair has
// that error and a zero value.
func receiveAll[T any](s *stream) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		next := new(T)
		var zero T
		for {
			err := s.receive(next)
			value := *next
			*next = zero // so that the next value shares no memory with this one
			if err == io.EOF {
				return
			}
			if err != nil {
				yield(zero, err)
				return
			}
			if !yield(value, nil) {
				return
			}
		}
	}
}

// receive blocks until the next data have arrived, and decodes them to the value to which ptr
// points. It returns io.EOF after the last data. Other errors are *Error: that of the handler, or
// the reason for which the stream has failed. A receive that begins returns the credit for the data
// before. Only one goroutine receives at a time, others wait.
func (s *stream) receive(ptr any) error {
	s.receiveLock.Lock()
	defer s.receiveLock.Unlock()
	var err error
	switch {
	case s.opened == nil:
		s.returnCredit()
		in, end := s.take()
		if end != nil {
			return s.wrapError(end)
		}
		err = s.decode(in, ptr)
	case s.ctx.Err() != nil:
		err = ctxerr.Cause(s.ctx)
	default:
		err = s.nextInBatch(ptr)
	}
	if err != nil {
		s.fail(err)
	}
	return s.wrapError(err)
}

// receiveEnd blocks until the call has been replied to or the stream has failed. It returns nil if
// the reply has a result, and otherwise an *Error. It is for a caller that receives no data.
func (s *stream) receiveEnd() error {
	s.receiveLock.Lock()
	defer s.receiveLock.Unlock()
	if _, err := s.take(); err != io.EOF {
		return s.wrapError(err)
	}
	return nil
}

// take blocks until the next data have arrived and returns them; they pass to the calling function.
// After the last data it returns io.EOF, or at the caller the error of the reply if there is one,
// and ends the context of the caller's stream. If the stream has failed before that, it returns the
// cause.
func (s *stream) take() (*inMessage, error) {
	for {
		s.mu.Lock()
		switch {
		case s.next >= s.total && (s.call == nil || s.replied):
			err := s.result
			s.mu.Unlock()
			if s.call != nil {
				s.fail(errLoopLeft) // releases the context
			}
			if err == nil {
				err = io.EOF
			}
			return nil, err
		case s.ctx.Err() != nil:
			s.mu.Unlock()
			return nil, ctxerr.Cause(s.ctx)
		case len(s.queue) > 0 && s.queue[0].head.Seq == s.next:
			in := s.queue[0]
			s.queue[0] = nil
			if len(s.queue) == 1 {
				s.queue = s.queue[:0] // it keeps its memory
			} else {
				s.queue = s.queue[1:]
			}
			s.next++
			s.current = streamBytes(in)
			s.mu.Unlock()
			return in, nil
		}
		s.mu.Unlock()
		s.awaitData()
	}
}

// awaitData blocks until it has taken an element from s.arrived, or the context of the stream has
// ended. It writes the batch first, for which the other end may wait. It polls before it blocks, and reads the messages of the connection itself while it blocks, unless
// another goroutine does so. If the stream is idle for its limit while it blocks, the stream fails.
// The caller holds s.receiveLock.
func (s *stream) awaitData() {
	s.flushBatch()
	if s.call != nil && s.call.nested {
		if r := requestOf(s.ctx); r != nil {
			r.slot.yieldLeader() // before it reads other messages, whose handlers may wait in turn
		}
	}
	if s.conn.poll(&s.leader, s.arrived) {
		return
	}
	defer s.beginWait()()
	_ = s.conn.block(s.ctx, &s.leader, s.arrived, nil)
}

// streamBytes returns the bytes that data count for the credit of their stream.
func streamBytes(in *inMessage) int {
	d := in.incoming.Descriptor()
	return len(d.Metadata) + d.Bytes() + wire.StreamOverhead
}

// decode reads in, a message with data, unless that was read on arrival, and decodes the data to
// the value to which ptr points. It owns in. The memory of large data at a called worker comes from
// the budget for large requests until the next data are received. The error is the cause with which
// the stream has failed; or it matches ErrUnreachable, ErrClosed or ErrCallerGone if the pipe has
// ended; or ErrResult at the caller and ErrArguments at the called worker if the data are invalid;
// or it is that of order.
func (s *stream) decode(in *inMessage, ptr any) error {
	a := s.conn.agent
	if !in.isInline() {
		defer s.beginWait()()
		if s.call == nil && !s.acquireLarge(in.incoming.Descriptor().Bytes()) {
			a.inMessages.drop(in)
			return cmp.Or(ctxerr.Cause(s.ctx), ErrCallerGone)
		}
	}
	if err := a.inMessages.receive(s.ctx, in); err != nil {
		defer a.inMessages.put(in)
		if cause := ctxerr.Cause(s.ctx); cause != nil {
			return cause
		}
		if _, ofPipe := errors.AsType[*pipe.Error](err); ofPipe && (s.conn.pipe.Err() != nil || a.isClosed()) {
			return s.conn.lostError(err)
		}
		return s.invalid(err)
	}
	if in.isBatch() {
		s.opened, s.values = in, in.head.Body
		return s.nextInBatch(ptr)
	}
	defer a.inMessages.put(in)
	streams := in.tensorStreams()
	if err := a.values.Decode(in.decoder, ptr); err != nil {
		return s.invalid(err)
	}
	s.mu.Lock()
	s.moved()
	s.mu.Unlock()
	return order(s.ctx, streams)
}

// invalid returns err as the error of data that cannot be decoded: one that matches ErrResult at the
// caller and ErrArguments at the called worker.
func (s *stream) invalid(err error) error {
	if s.call != nil {
		return withKind(ErrResult, err)
	}
	return withKind(ErrArguments, err)
}

// acquireLarge blocks until it has taken n bytes from the budget for large requests, records them
// as the charge of the last message, and returns true. It returns false, and has taken nothing, if
// the stream has failed or the pipe has ended.
func (s *stream) acquireLarge(n int) bool {
	if !s.conn.largeBudget.Acquire(s.ctx, s.conn.down, n) {
		return false
	}
	s.mu.Lock()
	failed := s.discarded
	if !failed {
		s.large = n
	}
	s.mu.Unlock()
	if failed {
		s.conn.largeBudget.Release(n)
	}
	return !failed
}

// returnCredit counts the bytes of the last message, which the receiver has used, as to be
// returned, and returns the charge of that message to the budget for large requests. Once half of
// the window is to be returned, it grants that to the other end, unless the other end has ended its
// sending or the stream has ended.
func (s *stream) returnCredit() {
	s.mu.Lock()
	s.unreturned += s.current
	large, granted := s.large, 0
	s.current, s.large = 0, 0
	if s.unreturned >= s.window/2 && s.total == unknownTotal && !s.discarded {
		granted, s.unreturned = s.unreturned, 0
	}
	s.mu.Unlock()
	if large > 0 {
		s.conn.largeBudget.Release(large)
	}
	if granted > 0 {
		s.grant(granted)
	}
}

// grant lets the other end send n bytes more. It does not block, and ignores errors of the pipe,
// whose end fails the stream.
func (s *stream) grant(n int) {
	s.mu.Lock()
	s.peerCredit += n
	s.mu.Unlock()
	p, m := s.conn.pipe, &pipe.Message{Metadata: wire.AppendCredit(nil, s.flags(), s.id, uint64(n))}
	if taken, err := p.TryWrite(m); !taken && err == nil {
		go func() { _ = p.Write(context.Background(), m) }()
	}
}

// accept queues in, a message with data, for the receiver, and owns it. Inline data are read at
// once; others stay at the other end, or in the pipe, until the receiver reads them. If the stream has ended, accept
// drops the data. For the end of the caller's data it only records their number. The error matches
// ErrProtocol if the data cannot be part of the stream, exceed the credit of the other end or
// repeat a number.
func (s *stream) accept(in *inMessage) error {
	a := s.conn.agent
	drop, err := s.check(in)
	if drop || err != nil {
		a.inMessages.drop(in)
		return err
	}
	if in.isInline() {
		_ = a.inMessages.receive(a.base, in) // it keeps the error for the receiver
	} else {
		in.deferRead(&s.conn.readers)
	}
	s.mu.Lock()
	queued, err := s.enqueue(in)
	complete := s.isComplete()
	s.mu.Unlock()
	if !queued {
		a.inMessages.drop(in)
	}
	if complete {
		s.conn.calls.removeStream(s.id)
	}
	return err
}

// check checks in, a message with data, apart from the credit. If in is the end of the caller's
// data, check records their number. Without an error, drop reports whether in is not to be queued.
// The error matches ErrProtocol if the data cannot be part of the stream.
func (s *stream) check(in *inMessage) (drop bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seq := in.head.Seq
	switch {
	case s.discarded:
		return true, nil
	case s.window == 0:
		return false, fmt.Errorf("%w: data for an end of a stream that does not receive", ErrProtocol)
	case seq < s.next || seq >= s.total:
		return false, fmt.Errorf("%w: data %d of a stream that continues with %d", ErrProtocol, seq, s.next)
	case in.head.Flags&wire.FlagEnd != 0:
		if s.call != nil || s.total != unknownTotal || len(in.head.Body) > 0 || in.incoming.Descriptor().Bytes() > 0 {
			return false, fmt.Errorf("%w: wrong end of the data of a stream", ErrProtocol)
		}
		s.total = seq
		notify(s.arrived)
		return true, nil
	}
	return false, nil
}

// enqueue adds in, a message with data, to the queue at the position of its number, wakes the
// receiver and returns true. It returns false if the stream has ended or the number is in the queue
// already or has been taken from it since check; then the error matches ErrProtocol. Otherwise the
// error is that of takeCredit. The caller holds s.mu.
func (s *stream) enqueue(in *inMessage) (queued bool, err error) {
	if s.discarded {
		return false, nil
	}
	at := len(s.queue)
	for at > 0 && s.queue[at-1].head.Seq > in.head.Seq {
		at--
	}
	if in.head.Seq < s.next || at > 0 && s.queue[at-1].head.Seq == in.head.Seq {
		return false, fmt.Errorf("%w: data %d of a stream came twice", ErrProtocol, in.head.Seq)
	}
	s.queue = slices.Insert(s.queue, at, in)
	s.received++
	s.moved()
	notify(s.arrived)
	return true, s.takeCredit()
}

// takeCredit takes the bytes of the queued data from the credit of the other end, in the order of
// their numbers up to the first one that is missing: data of a connection may be handled in another
// order. The error matches ErrProtocol if the other end exceeds its credit, also with data that
// follow a missing number. The caller holds s.mu.
func (s *stream) takeCredit() error {
	i := int(s.admitted - s.next) // the data before it are in the queue
	for ; i < len(s.queue) && s.queue[i].head.Seq == s.admitted; i++ {
		n := streamBytes(s.queue[i])
		if s.peerCredit < min(n, wire.StreamThreshold) {
			return fmt.Errorf("%w: data of %d bytes for a stream, with a credit of %d", ErrProtocol, n, s.peerCredit)
		}
		s.peerCredit -= n
		s.admitted++
	}
	ahead, excess := 0, 0 // only the last of them may exceed the credit
	for _, in := range s.queue[i:] {
		n := streamBytes(in)
		ahead, excess = ahead+n, max(excess, n-wire.StreamThreshold)
	}
	if ahead-excess > max(s.peerCredit, 0) {
		return fmt.Errorf("%w: data of %d bytes ahead of their turn in a stream, with a credit of %d", ErrProtocol, ahead, s.peerCredit)
	}
	return nil
}

// isComplete reports whether this end is the caller and has received the reply and all data. The
// caller holds s.mu.
func (s *stream) isComplete() bool { return s.call != nil && s.replied && s.received >= s.total }

// setCount records how many data the called worker has sent, which it reads from the reply that d
// decodes; a reply without that number means 0. The error matches ErrProtocol if the number is
// invalid, or is not 0 although this end does not receive.
func (s *stream) setCount(d *codec.Decoder) error {
	count := uint64(0)
	if data, ok := d.Header(wire.CountHeader); ok {
		var err error
		if count, err = wire.ParseNumber(wire.CountHeader, data); err != nil {
			return err
		}
	}
	if count > 0 && s.window == 0 {
		return fmt.Errorf("%w: %d data for a caller that does not receive", ErrProtocol, count)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total = count
	return nil
}

// setReply records that the call of the stream has ended, with the error err or, if err is nil,
// with a result. Data that the reply counts can still be received.
func (s *stream) setReply(err error) {
	s.mu.Lock()
	s.replied, s.result = true, err
	if s.total == unknownTotal {
		s.total = 0
	}
	complete := s.isComplete()
	notify(s.arrived)
	notify(s.credited)
	s.mu.Unlock()
	if complete {
		s.conn.calls.removeStream(s.id)
	}
}
