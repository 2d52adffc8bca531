package cma

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/onesided"
)

// native is the [onesided.Protocol] and the [onesided.Scheduler] of one end of a channel in the
// native dialect. The goroutine that reads frames copies small tensors, and the copy pool copies
// large ones; if a small copy stalls, another goroutine continues to read frames, and leaves all
// tensors to the copy pool.
type native struct {
	engine   *onesided.Engine
	pid      int
	peerPID  int // the peer's process, 0 if it is not known yet; used by the reading goroutine
	copyPool *copyPool
	reader   reader // of the goroutine that has set inline

	mu            sync.Mutex
	inline        bool          // a reading goroutine copies a tensor
	stallDetector stallDetector // of that copy
}

func newNative(link channel.Link, process int, slots chan struct{}) channel.Channel {
	p := &native{pid: os.Getpid(), peerPID: process}
	p.engine = onesided.New(link, onesided.Config{
		Protocol:  p,
		MaxFrame:  maxFrame,
		WrapError: func(err error) error { return wrapError(link.Peer, err) },
	})
	p.copyPool = newCopyPool(slots, p.engine.Go)
	p.copyPool.arrived = link.Arrived
	p.stallDetector.init(p.checkStalled)
	p.engine.Run()
	return p.engine
}

// Close implements [onesided.Protocol]. It closes the copy pool, whose workers end when they have
// finished their tasks. It does not wait for them.
func (p *native) Close() { p.copyPool.close() }

// source is memory of a Send. While validity is not 0 the peer may read it.
type source struct {
	validity   atomic.Uint64 // read by the peer: validValue while it may copy, else 0
	validValue uint64        // random, not 0
	pieces     [][]byte
}

// Describe implements [onesided.Protocol]. It returns a source with the pieces of src, or with a
// copy if src has more than maxListedPieces pieces, and a new validity word. The source shares
// src's memory unless it was copied. The error is ErrScattered if src has too many pieces and is
// larger than MaxGather.
func (p *native) Describe(src device.Buffer) (onesided.Source, error) {
	pieces, err := gather(src, maxListedPieces)
	if err != nil {
		return nil, err
	}
	s := &source{validValue: 1 + rand.Uint64N(1<<64-1), pieces: pieces}
	s.validity.Store(s.validValue)
	return s, nil
}

// Revoke implements [onesided.Source]. It sets the validity word to 0 and does not wait: the peer
// drops bytes that it copies after that.
func (s *source) Revoke() { s.validity.Store(0) }

// Copied implements [onesided.Source]. It returns nil and does nothing, because a copy that the
// peer has confirmed is complete.
func (s *source) Copied() error { return nil }

// Start implements [onesided.Scheduler]. If reading is true, the tensor is small and the reading
// goroutine is not copying another one, it returns true: the caller must call Pull. It also starts
// the timer of the stall detector then. Otherwise it queues the tensor in the copy pool, which
// calls r.Finish in the end, and returns false.
func (p *native) Start(r *onesided.Recv, reading bool) (inline bool) {
	if reading && r.Buf.Len() <= smallCopy {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.inline {
			p.inline = true
			p.stallDetector.arm(true)
			return true
		}
	}
	o := r.Memory.(*description)
	o.copyTask = copyTask{pid: o.pid, dst: r.Buf, src: o.pieces}
	o.copyTask.finished = func(memory *reader, err error) { r.Finish(o.outcome(memory, err)) }
	p.copyPool.start(&o.copyTask)
	return false
}

// Pull implements [onesided.Protocol]. It copies the tensor that r.Memory describes from the peer's
// process into r.Buf. The goroutine that reads frames calls it for a tensor for which Start has
// returned true. The error matches channel.ErrAborted if the sender has revoked the tensor, or
// io.ErrUnexpectedEOF if the peer's process is gone. Any other error is that of the copy.
func (p *native) Pull(r *onesided.Recv) error {
	o := r.Memory.(*description)
	err := o.outcome(&p.reader, p.reader.read(o.pid, r.Buf, o.pieces, 0, r.Buf.Len()))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stallDetector.completed++
	p.inline = false
	return err
}

// checkStalled is called when the timer of the stall detector expires. If Pull is copying the
// tensor that it was copying when the timer was started, the copy has stalled, and checkStalled
// starts another goroutine that reads frames. If Pull is copying a later tensor, it starts the
// timer again.
func (p *native) checkStalled() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stallDetector.expired() && p.inline {
		p.engine.ReplaceReader()
		return
	}
	p.stallDetector.arm(p.inline)
}

// Stop implements [onesided.Scheduler]. It ends the copy of r's tensor by the copy pool because of
// cause, without waiting. It returns true if the memory is not in use; Finish is not called for r
// then. Otherwise Finish has been called, or will be.
func (p *native) Stop(r *onesided.Recv, cause error) (idle bool) {
	return p.copyPool.stop(&r.Memory.(*description).copyTask, cause)
}

// outcome returns the result of a copy of the tensor o that ended with err, as Pull of
// [onesided.Protocol] returns it. If err is nil or means that memory is not mapped, outcome first
// reads the peer's validity word with the reader memory. If the word has changed or is not mapped,
// the sender has revoked the tensor, and the result is channel.ErrAborted; if the word cannot be
// read, the result is the error of that read. If the peer's process does not exist any more, the
// result matches io.ErrUnexpectedEOF. Otherwise the result is err.
func (o *description) outcome(memory *reader, err error) error {
	if err == nil || noSuchMemory(err) {
		src := [1]segment{{o.validityAddr, validitySize}}
		fault := memory.read(o.pid, device.Bytes(o.validity[:]), src[:], 0, validitySize)
		switch {
		case noSuchMemory(fault):
			err = channel.ErrAborted
		case fault != nil:
			err = fault
		case binary.NativeEndian.Uint64(o.validity[:]) != o.validityValue:
			err = channel.ErrAborted
		}
	}
	if noSuchProcess(err) {
		err = fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
	}
	return err
}
