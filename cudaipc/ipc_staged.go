package cudaipc

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/sysid"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// stagedEnd is one end of a channel in the compatible dialect, with the wire form of TensorPipe. The
// sender copies each tensor in parts into slots of its outbox and announces each part on the first
// connection. The receiver copies the part out of the slot and confirms on the second connection that
// the copy is enqueued. A Send completes with its last confirmation: an end without Sends may close the
// channel, and then its peer can confirm nothing. Sender and receiver of a part both record the event of its slot, in turn: the
// receiver waits for the sender's record, and the next sender of the slot for the receiver's.
type stagedEnd struct {
	kind      *Kind
	link      channel.Link
	lifecycle *transfer.Lifecycle
	sends     *transfer.Queue
	recvs     *transfer.Queue
	imports   *importSet

	peer   int         // process of the peer, 0 if it is not known
	ending atomic.Bool // the peer has closed the channel

	outboxes map[*gpu]*outbox              // used by the goroutine that sends
	remote   map[int32]*wire.CUDAIPCOutbox // the peer's, by device; used by the goroutine that receives

	sent chan struct{} // closed after the last announcement

	mu          sync.Mutex
	outstanding fifo.Queue[part] // announced and not confirmed
	aborted     error            // the cause of the Abort that ends the channel
}

// part is a part of a tensor in a slot of an outbox.
type part struct {
	outbox *outbox
	index  int
	whole  transfer.Transfer // with the last part, else zero
}

var _ channel.Compatible = (*stagedEnd)(nil)

// newStagedEnd returns an end over link and starts its goroutines.
func newStagedEnd(kind *Kind, link channel.Link, process int) channel.Channel {
	e := &stagedEnd{
		kind: kind, link: link, peer: process, sends: transfer.NewQueue(), recvs: transfer.NewQueue(),
		sent:     make(chan struct{}),
		imports:  newImportSet(kind),
		outboxes: make(map[*gpu]*outbox), remote: make(map[int32]*wire.CUDAIPCOutbox),
	}
	e.lifecycle = transfer.NewLifecycle(e.release, link.Broken)
	e.lifecycle.Go(e.serveSends)
	e.lifecycle.Go(e.serveRecvs)
	e.lifecycle.Go(e.serveConfirmations)
	return e
}

// release closes the link. The peer then knows that this end makes no more calls with its memory and events,
// so that release waits for those under way, which do not block.
func (e *stagedEnd) release() error {
	e.imports.stop()
	return channel.CloseLink(e.link)
}

// gone reports whether the peer makes no more calls with memory and events of this end: it has closed the
// channel, or its process has ended.
func (e *stagedEnd) gone() bool { return e.ending.Load() || e.dead() }

// dead reports whether the process of the peer has ended. Before that, work that it has enqueued may still
// use the memory.
func (e *stagedEnd) dead() bool { return !processLives(e.peer) }

func (e *stagedEnd) serveSends() {
	defer close(e.sent)
	e.fail(e.send())
	e.lifecycle.Drain(e.sends)
}

func (e *stagedEnd) serveRecvs() {
	e.fail(e.receive())
	e.lifecycle.Drain(e.recvs)
	e.imports.close()
}

func (e *stagedEnd) serveConfirmations() {
	e.fail(e.readConfirmations())
	<-e.sent
	e.mu.Lock()
	left := e.outstanding.Clear()
	e.mu.Unlock()
	for _, p := range left {
		if p.whole.Done != nil {
			p.whole.Done(e.lifecycle.Err())
		}
	}
	for g, b := range e.outboxes { // no goroutine of this end uses them any more
		var reader *stagedEnd
		if len(b.free) < slotCount {
			reader = e
		}
		g.putOutbox(b, reader)
	}
}

// fail ends the channel with err, or with the cause of an Abort, which comes first. io.EOF means that
// the peer has closed the channel.
func (e *stagedEnd) fail(err error) {
	if errors.Is(err, io.EOF) {
		e.ending.Store(true)
	}
	e.mu.Lock()
	cause := e.aborted
	e.mu.Unlock()
	if cause == nil {
		cause = e.wrapError(err)
	}
	e.lifecycle.Fail(cause)
}

func (e *stagedEnd) wrapError(err error) error {
	if errors.Is(err, transport.ErrFrame) {
		err = fmt.Errorf("%w: %w", channel.ErrProtocol, err)
	}
	return &channel.Error{Channel: IPCName, Peer: e.link.Peer, Err: err}
}

// Send implements [channel.Channel].
func (e *stagedEnd) Send(id uint64, src device.Buffer, done func(error)) {
	e.begin(e.sends, id, src, done)
}

// Recv implements [channel.Channel].
func (e *stagedEnd) Recv(id uint64, dst device.Buffer, done func(error)) {
	e.begin(e.recvs, id, dst, done)
}

// begin queues a transfer of buf in q. Memory that is not of this device kind ends the channel, because
// the wire form cannot skip a tensor. If the transfer is not queued, done is called on another
// goroutine.
func (e *stagedEnd) begin(q *transfer.Queue, id uint64, buf device.Buffer, done func(error)) {
	if buf.Len() == 0 {
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
		return
	}
	if err := e.Fits(buf); err != nil {
		err = e.wrapError(err)
		e.lifecycle.Fail(err)
		e.lifecycle.CompleteAsync(done, err)
		return
	}
	if !q.Push(transfer.Transfer{ID: id, Buf: buf, Done: done}) {
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
	}
}

// Fits implements [channel.Compatible]. It returns an error that matches device.ErrMemory or
// device.ErrStream if src is not memory of this device kind.
func (e *stagedEnd) Fits(src device.Buffer) error {
	_, _, err := e.kind.memoryOf(src)
	return err
}

// Discard implements [channel.Compatible]. The parts are confirmed without a copy.
func (e *stagedEnd) Discard(id uint64, n int, done func(error)) {
	if n == 0 || !e.recvs.Push(transfer.Transfer{ID: id, Discarded: n, Done: done}) {
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
	}
}

// EndRecv implements [channel.Compatible].
func (e *stagedEnd) EndRecv() { e.recvs.End() }

// Abort implements [channel.Channel]. It ends the channel, because the wire form cannot skip a tensor.
func (e *stagedEnd) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	e.mu.Lock()
	defer e.mu.Unlock()
	var found []func(error)
	for _, q := range []*transfer.Queue{e.sends, e.recvs} {
		if done, ok := q.Cancel(id); ok {
			found = append(found, done)
		}
	}
	for i := range e.outstanding.Len() {
		if t := &e.outstanding.At(i).whole; t.ID == id && t.Done != nil {
			found = append(found, t.Done)
			t.Done = nil
		}
	}
	for _, done := range found {
		e.lifecycle.CompleteAsync(done, cause)
	}
	if len(found) > 0 && e.aborted == nil {
		e.aborted = cause
		e.lifecycle.Go(func() { e.fail(cause) })
	}
}

// Close implements [channel.Channel].
func (e *stagedEnd) Close(cause error) error { return e.lifecycle.Close(cause) }

// send sends the tensors in e.sends, in order, until the channel ends. It returns the error, which is
// never nil.
func (e *stagedEnd) send() error {
	for {
		t, err := e.sends.Wait(e.lifecycle.Context())
		if err != nil {
			return err
		}
		for offset := 0; offset < t.Buf.Len(); offset += slotSize {
			n := min(slotSize, t.Buf.Len()-offset)
			if err := e.sendPart(t.Buf.Slice(offset, n), offset+n == t.Buf.Len()); err != nil {
				return err
			}
		}
	}
}

// sendPart copies src, a part of the first tensor of e.sends, into a slot and announces it. With the last
// part the tensor moves from e.sends to e.outstanding. It blocks until a slot is free.
func (e *stagedEnd) sendPart(src device.Buffer, last bool) error {
	m, at, err := e.kind.memoryOf(src)
	if err != nil {
		return err
	}
	s, err := m.gpu.streamOf(src)
	if err != nil {
		return err
	}
	box := e.outboxes[m.gpu]
	if box == nil {
		if box, err = m.gpu.takeOutbox(e); err != nil {
			return err
		}
		e.outboxes[m.gpu] = box
	}
	var index int
	select {
	case index = <-box.free:
	case <-e.lifecycle.Context().Done():
		return e.lifecycle.Err()
	}
	d := wire.CUDAIPCDescriptor{Device: int32(src.Device().Index), Slot: uint64(index), Outbox: box.describe()}
	err = e.whileWanted(e.sends, func() error {
		m.usedOn(s)
		err := box.exchange(e, index, s, func(slot driver.Ptr) error {
			return m.gpu.driver.Copy(slot, at, src.Len(), s.handle)
		})
		if err != nil {
			return err
		}
		p := part{outbox: box, index: index}
		if last {
			p.whole = e.sends.Pop()
		}
		e.outstanding.Push(p)
		return nil
	})
	if err != nil {
		return err
	}
	return e.link.Conns[0].WriteFrames(transport.Frame{d.Append(nil)})
}

// whileWanted calls f unless the first transfer of q was aborted; an Abort waits for f. The error is
// that of f, or of the channel.
func (e *stagedEnd) whileWanted(q *transfer.Queue, f func() error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t, ok := q.Peek(0); !ok || t.Done == nil {
		return cmp.Or(e.aborted, e.lifecycle.Err())
	}
	return f()
}

// readConfirmations frees the slots that the peer confirms, and completes the tensors of which all parts
// are confirmed, until reading fails or the peer breaks the protocol. It returns the error, which is never
// nil.
func (e *stagedEnd) readConfirmations() error {
	for {
		n, err := e.link.Conns[1].NextFrame()
		if err != nil {
			return err
		}
		e.mu.Lock()
		if e.outstanding.Len() == 0 || n != 0 {
			e.mu.Unlock()
			return fmt.Errorf("%w: a confirmation of %d bytes, or without a part", channel.ErrProtocol, n)
		}
		p := e.outstanding.Pop()
		p.outbox.free <- p.index
		e.mu.Unlock()
		if p.whole.Done != nil {
			p.whole.Done(nil)
		}
	}
}

// exchange enqueues work on s between a wait for the last record of e and the next record of e. The
// context of g must be current.
func exchange(g *gpu, e driver.Event, s *Stream, work func() error) error {
	if err := g.driver.Wait(s.handle, e); err != nil {
		return err
	}
	if err := work(); err != nil {
		return err
	}
	return g.driver.Record(e, s.handle)
}

// processName returns the text by which TensorPipe names this process.
func processName() string {
	ns, err := sysid.NamespaceID(sysid.PID)
	if err != nil {
		ns = ""
	}
	return ns + "_" + strconv.Itoa(os.Getpid())
}
