package cma

import (
	"os"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// batch is the maximum number of frames per write.
const batch = 64

// pending is a Send that has been announced, so that the peer may read its memory.
type pending struct {
	transfer.Transfer
	whole []byte // announced memory: the tensor, or its gathered pieces
}

// announcer is the state of the goroutine that runs announce.
type announcer struct {
	frames []transport.Frame
}

// announce waits for queued tensors and sends their announcements. It returns the error that ends the
// channel, or that has ended it.
func (e *end) announce() error {
	for {
		if err := e.nextBatch(); err != nil {
			return err
		}
		if err := e.announcements.WriteFrames(e.announcer.frames...); err != nil {
			return err
		}
	}
}

// nextBatch waits for a tensor to send. It makes announcements, in announcer.frames, of this tensor
// and of those queued directly after it that are ready, at most batch. An error ends the channel.
func (e *end) nextBatch() error {
	t, err := e.sends.Wait(e.lifecycle.Context())
	if err == nil {
		err = t.WaitReady()
	}
	e.announcer.frames = e.announcer.frames[:0]
	for n, ok := 0, true; ok && err == nil; {
		err = e.announceFront()
		if n++; n == batch {
			break
		}
		t, ok = e.sends.Peek(0)
		ok = ok && t.Ready()
	}
	return err
}

// announceFront moves the front of sends, whose memory must be ready, to pending, and appends its
// announcement to announcer.frames. It returns an error, and leaves the front, if the channel has
// ended or the memory is too scattered.
func (e *end) announceFront() error {
	if err := e.lifecycle.Err(); err != nil {
		return err
	}
	t, _ := e.sends.Peek(0)
	whole, err := contiguous(t.Buf)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.pending.Push(pending{e.sends.Pop(), whole})
	e.mu.Unlock()
	e.announcer.add(wire.CMADescriptor{PID: uint32(os.Getpid()), Ptr: segmentOf(whole).address})
	return nil
}

// contiguous returns the memory of buf itself, or a copy if it consists of several pieces. The error
// is ErrScattered if it is too large to be copied.
func contiguous(buf device.Buffer) ([]byte, error) {
	if p, ok := buf.Contiguous(); ok {
		return p, nil
	}
	pieces, err := gather(buf, 1)
	if err != nil {
		return nil, err
	}
	return pieces[0], nil
}

// add appends a frame with d to a.frames, reusing the memory of a frame of an earlier batch.
func (a *announcer) add(d wire.CMADescriptor) {
	n := len(a.frames)
	if n == cap(a.frames) {
		a.frames = append(a.frames, nil)
	}
	a.frames = a.frames[:n+1]
	if a.frames[n] == nil {
		a.frames[n] = make(transport.Frame, 1)
	}
	a.frames[n][0] = d.Append(a.frames[n][0][:0])
}

// complete reads completions, and calls done for the announced tensors in order. It returns the error
// of the connection, or one that matches channel.ErrProtocol. While release lingers it continues.
func (e *end) complete() error {
	for {
		n, err := e.completions.NextFrame()
		if err != nil {
			return err
		}
		if n != 0 {
			return protocolError("a completion of %d bytes", n)
		}
		done, ok := e.popPending()
		if !ok {
			return protocolError("a completion without a tensor")
		}
		done(nil)
	}
}

// popPending removes the oldest announced tensor and returns its done function, which the caller must
// call. ok is false if none is announced.
func (e *end) popPending() (done func(error), ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pending.Len() == 0 {
		return nil, false
	}
	return e.pending.Pop().Done, true
}

func (e *end) isPending(id uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.pending.Len() {
		if e.pending.At(i).ID == id {
			return true
		}
	}
	return false
}

func (e *end) anyPending() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pending.Len() > 0
}

// failPending completes all announced tensors with the error of the channel, which must have ended.
// The caller must know that no correct peer reads their memory any more.
func (e *end) failPending() {
	e.mu.Lock()
	remaining := e.pending.Clear()
	e.mu.Unlock()
	for _, p := range remaining {
		p.Done(e.lifecycle.Err())
	}
}

// maxDescriptor is the size of an announcement with every number in its longest form.
const maxDescriptor = 1 + 9 + 9

// copier is the state of the goroutine that runs receive.
type copier struct {
	pid        uint32 // the peer's process, 0 if it is not known yet
	text       [maxDescriptor]byte
	part       [1][]byte // of text
	src        [1]segment
	reader     reader
	copyTask   copyTask
	finished   chan error // outcome of copyTask
	completion [1]transport.Frame
}

func (c *copier) init(process int) {
	c.pid = uint32(process)
	c.finished = make(chan error, 1)
	c.copyTask.finished = func(err error) { c.finished <- err }
	c.copyTask.src = c.src[:]
}

// receive copies the announced tensors in order, and sends a completion after each. It returns the
// error that ends the channel.
func (e *end) receive() error {
	for {
		d, err := e.nextAnnouncement()
		if err != nil {
			return err
		}
		if err := e.serve(d); err != nil {
			return err
		}
		if err := e.completions.WriteFrames(e.copier.completion[:]...); err != nil {
			return err
		}
	}
}

func (e *end) nextAnnouncement() (d wire.CMADescriptor, err error) {
	n, err := e.announcements.NextFrame()
	if err != nil {
		return d, err
	}
	if n > maxDescriptor {
		return d, protocolError("an announcement of %d bytes", n)
	}
	c := &e.copier
	c.part[0] = c.text[:n]
	if err := e.announcements.ReadBody(c.part[:]...); err != nil {
		return d, err
	}
	if d, err = wire.DecodeCMADescriptor(c.part[0], wire.Limits{}); err != nil {
		return d, protocolError("%w", err)
	}
	if !isProcess(d.PID) || c.pid != 0 && c.pid != d.PID {
		return d, protocolError("an announcement of process %d, by process %d", d.PID, c.pid)
	}
	c.pid = d.PID
	return d, nil
}

// serve waits for the next Recv and its memory, copies the announced tensor d into it unless it is
// to be discarded, and completes it. An error ends the channel; the Recv then stays queued.
func (e *end) serve(d wire.CMADescriptor) error {
	t, err := e.recvs.Wait(e.lifecycle.Context())
	if err == nil {
		err = t.WaitReady()
	}
	if err == nil && t.Discarded == 0 {
		err = e.copy(&t, d)
	}
	if err == nil {
		err = e.lifecycle.Err() // a peer that has detected the end may have changed the memory
	}
	if err != nil {
		return err
	}
	e.recvs.Pop().Done(nil)
	return nil
}

func (e *end) copy(t *transfer.Transfer, d wire.CMADescriptor) error {
	c := &e.copier
	size := t.Buf.Len()
	c.src[0] = segment{d.Ptr, uint64(size)}
	if size <= smallCopy {
		return c.reader.read(int(d.PID), t.Buf, c.src[:], 0, size)
	}
	c.copyTask.pid, c.copyTask.dst = int(d.PID), t.Buf
	e.copyPool.start(&c.copyTask)
	select {
	case err := <-c.finished:
		return err
	case <-e.lifecycle.Context().Done():
	}
	if !e.copyPool.stop(&c.copyTask, e.lifecycle.Err()) {
		<-c.finished
	}
	return e.lifecycle.Err()
}
