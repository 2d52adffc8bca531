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

// native is the [onesided.Protocol] and the [onesided.Scheduler] of one end of a channel in the native
// dialect. The goroutine that reads frames copies small tensors, and the copy pool copies large ones; if
// a small copy stalls another goroutine continues reading, and leaves all tensors to the copy pool.
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

// Close implements [onesided.Protocol].
func (p *native) Close() { p.copyPool.close() }

// source is memory of a Send. While validity is not 0 the peer may read it.
type source struct {
	validity   atomic.Uint64 // read by the peer: validValue while it may copy, else 0
	validValue uint64        // random, not 0
	pieces     [][]byte
}

// Describe implements [onesided.Protocol].
func (p *native) Describe(src device.Buffer) (onesided.Source, error) {
	pieces, err := gather(src, maxListedPieces)
	if err != nil {
		return nil, err
	}
	s := &source{validValue: 1 + rand.Uint64N(1<<64-1), pieces: pieces}
	s.validity.Store(s.validValue)
	return s, nil
}

// Revoke implements [onesided.Source]. It does not wait: the peer drops bytes that it reads later.
func (s *source) Revoke() { s.validity.Store(0) }

// Copied implements [onesided.Source].
func (s *source) Copied() error { return nil }

// Start implements [onesided.Scheduler].
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
	o.copyTask.finished = func(err error) { r.Finish(o.outcome(new(reader), err)) }
	p.copyPool.start(&o.copyTask)
	return false
}

// Pull implements [onesided.Protocol]. It runs only on the reading goroutine, for a tensor for which
// Start has returned true.
func (p *native) Pull(r *onesided.Recv) error {
	o := r.Memory.(*description)
	err := o.outcome(&p.reader, p.reader.read(o.pid, r.Buf, o.pieces, 0, r.Buf.Len()))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stallDetector.completed++
	p.inline = false
	return err
}

// checkStalled handles the expiry of the stall detector. If the copy of the reading goroutine has
// stalled it starts another reader.
func (p *native) checkStalled() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stallDetector.expired() && p.inline {
		p.engine.ReplaceReader()
		return
	}
	p.stallDetector.arm(p.inline)
}

// Stop implements [onesided.Scheduler].
func (p *native) Stop(r *onesided.Recv, cause error) (idle bool) {
	return p.copyPool.stop(&r.Memory.(*description).copyTask, cause)
}

// outcome returns the error that Pull of [onesided.Protocol] must return for a copy of o that ended
// with err. It reads the peer's validity word with memory, the caller's reader. If the word has changed
// or is not mapped any more, the sender may have changed the tensor during the copy, and outcome
// returns channel.ErrAborted. If the peer's process does not exist any more, the error matches
// io.ErrUnexpectedEOF.
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
