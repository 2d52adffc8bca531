package cma

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// sendOp is a Send. While validity is not 0 the peer may read the memory.
type sendOp struct {
	transfer.Transfer
	validity   atomic.Uint64 // read by the peer: validValue while it may copy, else 0
	validValue uint64        // random, not 0; 0 before the tensor is described
	pieces     [][]byte      // the described memory
}

// controlFrame is a frame to write.
type controlFrame struct {
	kind byte
	id   uint64
	send *sendOp // set for kindDescribe
}

func (e *nativeEnd) Send(id uint64, src device.Buffer, done func(error)) {
	t, fault := transfer.New(e.lifecycle.Context(), id, src, done)
	s := &sendOp{Transfer: t}
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.checkBegin(src, fault)
	if err != nil || src.Len() == 0 {
		s.CancelWait()
		e.lifecycle.CompleteAsync(done, err)
		return
	}
	e.sends[id] = s
	if s.Ready() {
		e.describe(s)
	} else {
		e.lifecycle.Go(func() { e.describeWhenReady(s) })
	}
}

// describeWhenReady waits until the memory of s is valid on its stream, and then describes the tensor.
// If that work failed it fails s. It does nothing if s was aborted or the channel has ended.
func (e *nativeEnd) describeWhenReady(s *sendOp) {
	fault := s.WaitReady()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.sends[s.ID] != s || e.lifecycle.Err() != nil:
	case fault != nil:
		e.failSend(s, fault)
	default:
		e.describe(s)
	}
}

// describe makes the memory of s available to the peer and queues its description. If the memory
// cannot be described it fails s. The memory must be ready. The caller holds mu.
func (e *nativeEnd) describe(s *sendOp) {
	var err error
	if s.pieces, err = gather(s.Buf, maxListedPieces); err != nil {
		e.failSend(s, err)
		return
	}
	s.validValue = 1 + rand.Uint64N(1<<64-1)
	s.validity.Store(s.validValue)
	e.enqueue(controlFrame{kindDescribe, s.ID, s})
}

// failSend removes s, which cannot be described, and completes it with err on another goroutine. The
// caller holds mu.
func (e *nativeEnd) failSend(s *sendOp, err error) {
	delete(e.sends, s.ID)
	e.lifecycle.CompleteAsync(s.Done, e.wrapError(err))
}

// abortSend removes s, revokes its description and completes s with cause on another goroutine. The
// peer is informed because it may keep the description for a Recv that will not come. The caller holds
// mu.
func (e *nativeEnd) abortSend(s *sendOp, cause error) {
	delete(e.sends, s.ID)
	s.CancelWait()
	if s.validity.Swap(0) != 0 {
		e.enqueue(controlFrame{kind: kindRevoke, id: s.ID})
	}
	e.lifecycle.CompleteAsync(s.Done, cause)
}

func (e *nativeEnd) enqueue(f controlFrame) {
	e.outgoing.Push(f)
	e.work.Broadcast()
}

// write writes the outgoing frames until the channel ends or a write fails, and returns the error.
func (e *nativeEnd) write() error {
	var texts [batch][]byte
	var parts [batch][1][]byte
	var frames [batch]transport.Frame
	for {
		n, err := e.nextBatch(&texts)
		if err != nil {
			return err
		}
		for i := range n {
			parts[i][0] = texts[i]
			frames[i] = parts[i][:]
		}
		if err := e.conn.WriteFrames(frames[:n]...); err != nil {
			return err
		}
	}
}

// nextBatch waits for outgoing frames, encodes up to batch of them into texts, whose memory it reuses,
// and returns their number. After the end of the channel it returns its error.
func (e *nativeEnd) nextBatch(texts *[batch][]byte) (n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.outgoing.Len() == 0 && !e.ended {
		e.work.Wait()
	}
	if e.ended {
		return 0, e.lifecycle.Err()
	}
	for ; n < batch && e.outgoing.Len() > 0; n++ {
		f, text := e.outgoing.Pop(), texts[n][:0]
		if f.kind == kindDescribe {
			texts[n] = f.send.append(text, e.pid)
		} else {
			texts[n] = appendHead(text, f.kind, 0, f.id)
		}
	}
	return n, nil
}

// append appends the description frame of s; pid is this process. If s has been revoked meanwhile the
// frame is sent too, followed by the queued revocation.
func (s *sendOp) append(dst []byte, pid int) []byte {
	dst = appendDescription(dst, &description{id: s.ID, pid: pid, validityAddr: addressOfValidity(&s.validity), validityValue: s.validValue})
	for _, p := range s.pieces {
		dst = appendPiece(dst, segmentOf(p))
	}
	return dst
}

// handleCopied completes the Send with that id, whose tensor the peer has copied. An unknown id is
// that of an aborted Send and is ignored. The error matches channel.ErrProtocol if the tensor was not
// described.
func (e *nativeEnd) handleCopied(id uint64) error {
	e.mu.Lock()
	s := e.sends[id]
	if s != nil && s.validValue != 0 {
		delete(e.sends, id)
	}
	e.mu.Unlock()
	switch {
	case s == nil:
	case s.validValue == 0:
		return protocolError("a tensor was copied that was not described")
	default:
		s.Done(nil)
	}
	return nil
}
