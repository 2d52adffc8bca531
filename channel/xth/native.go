package xth

import (
	"cmp"
	"encoding/binary"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// nativeEnd is this process's end of a channel in the native dialect. One goroutine writes
// announcements, one reads announcements, one copies, and one reads completions; none waits for a
// transfer, so transfers may come in any order.
type nativeEnd struct {
	announcements transport.Conn // both ways
	completions   transport.Conn // both ways
	peer          string
	lifecycle     *transfer.Lifecycle
	here, there   *route // descriptions of this end and of the peer

	mu           sync.Mutex
	ended        bool // no transfer may begin
	sends        map[uint64]*sendOp
	recvs        map[uint64]*recvOp
	descriptions map[uint64]*description  // announced by the peer, without a ready Recv
	outgoing     fifo.Queue[announcement] // announcements to write
	copyQueue    fifo.Queue[*recvOp]
	work         sync.Cond // outgoing or copyQueue has grown, or ended is set
}

// newNativeEnd returns an end that owns the connections of link, and starts its goroutines.
func newNativeEnd(link channel.Link) *nativeEnd {
	from, to := link.Conns[0].LocalAddr(), link.Conns[0].RemoteAddr()
	e := &nativeEnd{
		announcements: link.Conns[0],
		completions:   link.Conns[1],
		peer:          link.Peer,
		here:          table.joinSender(endpoints{from: from, to: to}),
		there:         table.joinReceiver(endpoints{from: to, to: from}),
		sends:         make(map[uint64]*sendOp),
		recvs:         make(map[uint64]*recvOp),
		descriptions:  make(map[uint64]*description),
	}
	e.work.L = &e.mu
	e.lifecycle = transfer.NewLifecycle(func() error { return e.release(link) }, link.Broken)
	for _, work := range []func() error{e.announce, e.readAnnouncements, e.copyTensors, e.readCompletions} {
		e.lifecycle.Go(func() { e.lifecycle.Fail(e.wrapError(work())) })
	}
	return e
}

func (e *nativeEnd) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sends[id]; s != nil {
		e.abortSend(s, cause)
	}
	if r := e.recvs[id]; r != nil {
		e.abortRecv(r, cause)
	}
	delete(e.descriptions, id)
}

func (e *nativeEnd) Close(cause error) error { return e.lifecycle.Close(cause) }

// checkBegin returns why a transfer of buf cannot begin, or nil. fault is the error of transfer.New
// for it. The caller holds mu.
func (e *nativeEnd) checkBegin(buf device.Buffer, fault error) error {
	switch {
	case e.ended:
		return e.lifecycle.Err()
	case buf.Len() > 0 && !buf.IsHost():
		return e.wrapError(device.ErrMemory)
	case fault != nil:
		return e.wrapError(fault)
	}
	return nil
}

// release closes the link, revokes all Sends and completes all transfers except the one being copied,
// which the copying goroutine completes. The lifecycle calls it at its end, without mu. It blocks
// while the peer copies a chunk.
func (e *nativeEnd) release(link channel.Link) error {
	err := channel.CloseLink(link)
	sends, recvs := e.end()
	for _, s := range sends {
		s.revoke()
		s.Done(e.lifecycle.Err())
	}
	for _, r := range recvs {
		r.Done(e.lifecycle.Err())
	}
	table.leaveSender(e.here)
	return err
}

// end prevents further transfers, and returns the Sends, which the caller must revoke and complete,
// and the Recvs that are not being copied, which the caller must complete.
func (e *nativeEnd) end() (sends []*sendOp, recvs []*recvOp) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.sends {
		s.CancelWait()
		sends = append(sends, s)
	}
	for _, r := range e.recvs {
		r.CancelWait()
		if !r.copying {
			recvs = append(recvs, r)
		}
	}
	e.ended = true
	e.sends, e.recvs, e.descriptions = nil, nil, nil
	e.work.Broadcast()
	return sends, recvs
}

func (e *nativeEnd) wrapError(err error) error { return wrapError(e.peer, err) }

// Sizes of frames. An announcement is the id of a transfer and the address of its description, or 0 if
// that was revoked; a completion is an id.
const (
	announcementSize = 16
	completionSize   = 8
)

// sendOp is a Send.
type sendOp struct {
	transfer.Transfer
	description *description // nil until the memory is valid on its stream
}

// revoke withdraws the description of s, if it has one, and blocks until the receiver does not use the
// memory any more. The caller does not hold nativeEnd.mu.
func (s *sendOp) revoke() {
	if s.description != nil {
		s.description.revoke()
	}
}

// announcement is the content of an announcement frame: the id of a transfer, and the address of its
// description, 0 if that was revoked.
type announcement struct{ id, address uint64 }

func (e *nativeEnd) Send(id uint64, src device.Buffer, done func(error)) {
	t, fault := transfer.New(e.lifecycle.Context(), id, src, done)
	s := &sendOp{Transfer: t}
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.checkBegin(src, fault)
	switch {
	case err != nil || src.Len() == 0:
		s.CancelWait()
		e.lifecycle.CompleteAsync(done, err)
		return
	case s.Ready():
		e.describe(s)
	default:
		e.lifecycle.Go(func() { e.describeWhenReady(s) })
	}
	e.sends[id] = s
}

// describeWhenReady waits until the memory of s is valid on its stream, and then describes the tensor.
// If that work failed it completes s with the error. It does nothing if s was aborted or the channel
// has ended.
func (e *nativeEnd) describeWhenReady(s *sendOp) {
	fault := s.WaitReady()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sends[s.ID] != s || e.lifecycle.Err() != nil {
		return
	}
	if fault == nil {
		e.describe(s)
		return
	}
	delete(e.sends, s.ID)
	e.lifecycle.CompleteAsync(s.Done, e.wrapError(fault))
}

// describe permits the peer to copy the memory of s, which must be ready, and queues the announcement.
// The caller holds mu.
func (e *nativeEnd) describe(s *sendOp) {
	s.description = newDescription()
	s.description.reset(s.Buf)
	e.here.add(s.description)
	e.enqueue(announcement{s.ID, s.description.address()})
}

func (e *nativeEnd) enqueue(w announcement) {
	e.outgoing.Push(w)
	e.work.Broadcast()
}

// abortSend removes s, revokes its description, and completes s with cause on another goroutine, once
// the receiver does not use the memory. The peer is informed because it may keep the description for a
// Recv that will not come. The caller holds mu.
func (e *nativeEnd) abortSend(s *sendOp, cause error) {
	delete(e.sends, s.ID)
	s.CancelWait()
	if s.description != nil {
		e.enqueue(announcement{id: s.ID})
	}
	e.lifecycle.Go(func() {
		s.revoke()
		s.Done(cause)
	})
}

// announce writes the queued announcements until the channel ends or a write fails, and returns the
// error.
func (e *nativeEnd) announce() error {
	var texts [batch][announcementSize]byte
	var parts [batch][1][]byte
	var frames [batch]transport.Frame
	for {
		n, err := e.nextBatch(&texts)
		if err != nil {
			return err
		}
		for i := range n {
			parts[i][0] = texts[i][:]
			frames[i] = parts[i][:]
		}
		if err := e.announcements.WriteFrames(frames[:n]...); err != nil {
			return err
		}
	}
}

// nextBatch waits for queued announcements, encodes up to batch of them into texts, and returns their
// number. After the end of the channel it returns its error.
func (e *nativeEnd) nextBatch(texts *[batch][announcementSize]byte) (n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.outgoing.Len() == 0 && !e.ended {
		e.work.Wait()
	}
	if e.ended {
		return 0, e.lifecycle.Err()
	}
	for ; n < batch && e.outgoing.Len() > 0; n++ {
		w := e.outgoing.Pop()
		binary.LittleEndian.PutUint64(texts[n][:], w.id)
		binary.LittleEndian.PutUint64(texts[n][8:], w.address)
	}
	return n, nil
}

// readCompletions reads completions, and completes the Sends that they name, until a frame fails. It
// returns that error.
func (e *nativeEnd) readCompletions() error {
	var text [completionSize]byte
	for {
		if err := readFrame(e.completions, text[:], "completion"); err != nil {
			return err
		}
		done, err := e.handleCompletion(binary.LittleEndian.Uint64(text[:]))
		if err != nil {
			return err
		}
		if done != nil {
			done(nil)
		}
	}
}

// handleCompletion removes the Send with that id and returns its done function, which the caller must
// call. done is nil if the id is unknown: that Send was aborted. The error matches channel.ErrProtocol
// if the peer has not copied the tensor.
func (e *nativeEnd) handleCompletion(id uint64) (done func(error), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sends[id]
	if s == nil {
		return nil, nil
	}
	if s.description == nil || !s.description.copied() {
		return nil, protocolError("a completion of a tensor that was not copied")
	}
	delete(e.sends, id)
	return s.Done, nil
}

// readFrame reads one frame of c into text. The error matches channel.ErrProtocol if the frame has
// another length than text; what names the frame in it.
func readFrame(c transport.Conn, text []byte, what string) error {
	n, err := c.NextFrame()
	if err != nil {
		return err
	}
	if n != int64(len(text)) {
		return protocolError("%s: a frame of %d bytes, want %d", what, n, len(text))
	}
	return c.ReadBody(text)
}
