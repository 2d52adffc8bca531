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

// announce sends the announcements of the tensors in e.sends, in order, until the channel ends, a
// tensor cannot be announced or the connection fails. It returns the error, which is never nil.
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

// nextBatch blocks until e.sends has a tensor whose memory is ready. It moves this tensor, and
// those queued directly after it that are ready, from e.sends to e.pending, and sets
// e.announcer.frames to their announcements, at most batch. It returns an error if the channel has
// ended, the work of the tensor's stream failed, or the tensor is too scattered. The caller must
// then end the channel.
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

// announceFront moves the first transfer of e.sends, whose memory must be ready, to e.pending, and
// appends its announcement to e.announcer.frames. It returns the error of the channel if the
// channel has ended, or that of [contiguous]; the transfer then stays in e.sends.
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

// contiguous returns the host memory of buf as one slice: buf's memory itself if it is in one
// piece, and otherwise a copy. The error is ErrScattered if buf has several pieces and is larger
// than MaxGather.
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

// add appends a frame with the encoding of d to a.frames. It reuses the memory of a frame of an
// earlier batch, which must have been written.
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

// complete reads the peer's completions. For each it removes the oldest announced Send and calls
// its done function with nil. It returns the error of the connection, or one that matches
// channel.ErrProtocol if a completion is not empty or no Send is announced. It does not return at
// the end of the channel, but when the connection has been closed.
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

// popPending removes the oldest transfer of e.pending, which holds the announced Sends, and returns
// its done function, which the caller must call. If e.pending is empty, ok is false and done is
// nil.
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

// failPending removes all transfers from e.pending, which holds the announced Sends, and calls
// their done functions with the error of the channel. The channel must have ended, and the caller
// must know that no correct peer reads their memory any more.
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
	c.copyTask.finished = func(_ *reader, err error) { c.finished <- err }
	c.copyTask.src = c.src[:]
}

// receive reads announcements, copies each announced tensor into the memory of the next Recv, and
// sends a completion after each. It continues until one of these steps fails or the channel ends,
// and returns the error, which is never nil.
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

// serve waits for the next transfer in e.recvs and for its memory, copies the tensor announced by d
// into the memory, and completes the transfer. If the transfer is a Discard, serve copies nothing.
// On an error the transfer stays queued and is not completed, and the caller must end the channel.
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
