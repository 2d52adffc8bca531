package agent

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
)

// Small values that follow each other at once are sent as a batch: one message with several values.
// The message is written when it is full, when the stream waits, or when another goroutine, which
// is started with the batch, runs.
const (
	maxBatch     = 4 << 10 // bytes from which on a batch is written
	maxBatched   = 1 << 10 // bytes of the largest value in a batch
	batchPause   = 50 * time.Microsecond
	batchReserve = 2 * wire.StreamThreshold // credit without which no value is added to a batch
)

// addToBatch adds the value in out to the batch and returns true, if the value is small, has no
// tensors and may wait for others. out remains the caller's. A value waits if a batch has begun, or
// if it follows the last message of this end within batchPause and answers no value of the other
// end. The caller holds s.sendLock.
func (s *stream) addToBatch(out *outMessage) bool {
	body := out.buf[out.head:]
	begins := len(s.batch) == 0
	if len(body) > maxBatched || len(out.message.Tensors) > 0 || begins && !s.isBurst() {
		return false
	}
	batch, n := s.batch, -len(s.batch)
	if begins {
		batch = wire.AppendData(batch, s.flags()|wire.FlagBatch, s.id, s.sent)
		n = wire.StreamOverhead
	}
	batch = append(binary.AppendUvarint(batch, uint64(len(body))), body...)
	s.batched.Store(true) // before takeAhead, so that endBatch sees a value that is taken
	if !s.takeAhead(n+len(batch), begins) {
		s.batched.Store(!begins)
		return false
	}
	s.batch = batch
	if begins && !s.flusher.Swap(true) {
		go s.flushSoon()
	}
	return true
}

// isBurst reports whether a value follows the last message of this end at once and answers no value
// of the other end. The caller, which is about to send, holds s.sendLock.
func (s *stream) isBurst() bool {
	s.mu.Lock()
	received := s.received
	s.mu.Unlock()
	now := time.Now()
	burst := received == s.answered && now.Sub(s.written) < batchPause
	s.answered, s.written = received, now
	return burst
}

// takeAhead takes n bytes from the credit for a value of the batch, which has a number of its own
// if begins is true, and returns true. It takes nothing and returns false if the other end has not
// granted the first credit, if the sending has ended, if the stream has failed, or if less than
// batchReserve of credit is left. This reserve is enough for the rest of the batch and for the next
// value.
func (s *stream) takeAhead(n int, begins bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started || s.sendClosed || s.replied || s.credit < batchReserve || s.ctx.Err() != nil {
		return false
	}
	s.credit -= n
	if begins {
		s.sent++
	}
	s.moved()
	return true
}

// flush writes the batch, if there is one, and blocks while the pipe has no space. The error is that
// of the pipe or of the context of the stream. The caller holds s.sendLock.
func (s *stream) flush() error {
	if len(s.batch) == 0 {
		return nil
	}
	s.batchMessage.Metadata = s.batch
	taken, err := s.conn.pipe.TryWrite(&s.batchMessage)
	if !taken && err == nil {
		end := s.beginWait()
		err = s.conn.pipe.Write(s.ctx, &s.batchMessage)
		end()
	}
	s.batch, s.written = s.batch[:0], time.Now()
	s.batched.Store(false)
	return err
}

// flushSoon writes the batch on a goroutine of its own. If another goroutine is sending, that one
// writes the batch before it returns.
func (s *stream) flushSoon() {
	s.flusher.Store(false)
	s.flushBatch()
}

// flushBatch writes the batch. If another goroutine is sending, flushBatch leaves that to it and
// returns at once. An error of writing fails the stream.
func (s *stream) flushBatch() {
	if !s.batched.Load() {
		return
	}
	s.flushWanted.Store(true)
	if s.sendLock.TryLock() {
		s.unlockSend()
	}
}

// unlockSend unlocks s.sendLock. Before that it writes the batch if flushBatch was called while the
// lock was held.
func (s *stream) unlockSend() {
	for {
		if s.flushWanted.Swap(false) {
			_ = s.writeFailed(s.flush()) // later sends return the error
		}
		s.sendLock.Unlock()
		if !s.flushWanted.Load() || !s.sendLock.TryLock() {
			return // the goroutine that has the lock writes the batch
		}
	}
}

// endBatch ends the sending of the called worker when its handler has returned, and writes the
// batch as flushBatch does.
func (s *stream) endBatch() {
	s.endSending()
	s.flushBatch()
}

// isBatch reports whether in is a batch of values of a stream.
func (in *inMessage) isBatch() bool {
	return in.head.Kind == wire.KindData && in.head.Flags&wire.FlagBatch != 0
}

// nextInBatch decodes the next value of the opened batch to the value to which ptr points. After the
// last one, and after an error, it returns the batch to its pool. The error is that of s.invalid, for
// a value that cannot be decoded or is not within the batch.
func (s *stream) nextInBatch(ptr any) error {
	in := s.opened
	var err error
	n, size := binary.Uvarint(s.values)
	if size <= 0 || n > uint64(len(s.values)-size) {
		err = fmt.Errorf("%w: a value beyond the end of its batch", ErrProtocol)
	} else {
		end := size + int(n)
		if err = in.decoder.Reset(s.values[size:end]); err == nil {
			err = s.conn.agent.values.Decode(in.decoder, ptr)
		}
		s.values = s.values[end:]
	}
	if err == nil && len(s.values) > 0 {
		return nil
	}
	s.opened, s.values = nil, nil
	s.conn.agent.inMessages.put(in)
	if err != nil {
		return s.invalid(err)
	}
	return nil
}
