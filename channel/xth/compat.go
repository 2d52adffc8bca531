package xth

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// end is this process's end of a channel in the compatible dialect; its peer is in the same process.
// Three goroutines serve it: one announces tensors, one copies, and one reads completions.
type end struct {
	announcements transport.Conn // both ways
	completions   transport.Conn // both ways
	name, peer    string
	kind          device.Kind // nil for host memory
	lifecycle     *transfer.Lifecycle

	sends     *transfer.Queue // sends that are not announced yet
	recvs     *transfer.Queue
	announced chan struct{} // closed after the last announcement

	mu      sync.Mutex
	pending fifo.Queue[pending] // sends announced and not completed
	current activeRecv
	spare   []*description

	announcer announcer
	copier    copier
}

// newEnd returns an end of a channel of f for the compatible dialect and starts its goroutines. The end
// owns the connections of link, and retains the function Broken of link.
func newEnd(link channel.Link, f Factory) *end {
	e := &end{
		announcements: link.Conns[0],
		completions:   link.Conns[1],
		name:          f.name,
		peer:          link.Peer,
		kind:          f.kind,
		lifecycle:     transfer.NewLifecycle(func() error { return channel.CloseLink(link) }, link.Broken),
		sends:         transfer.NewQueue(),
		recvs:         transfer.NewQueue(),
		announced:     make(chan struct{}),
	}
	here, there := link.Conns[0].LocalAddr(), link.Conns[0].RemoteAddr()
	e.announcer.route = table.joinSender(endpoints{from: here, to: there})
	e.copier.route = table.joinReceiver(endpoints{from: there, to: here})
	e.lifecycle.Go(e.serveSends)
	e.lifecycle.Go(e.serveRecvs)
	e.lifecycle.Go(e.serveCompletions)
	return e
}

func (e *end) serveSends() {
	e.fail(e.announce())
	e.lifecycle.Drain(e.sends)
	close(e.announced)
}

func (e *end) serveRecvs() {
	e.fail(e.receive())
	e.lifecycle.Drain(e.recvs)
	table.leaveReceiver(e.copier.route)
}

func (e *end) serveCompletions() {
	e.fail(e.complete())
	<-e.announced
	e.revokeAll()
	table.leaveSender(e.announcer.route)
}

func (e *end) Send(id uint64, src device.Buffer, done func(error)) { e.begin(e.sends, id, src, done) }

func (e *end) Recv(id uint64, dst device.Buffer, done func(error)) { e.begin(e.recvs, id, dst, done) }

// begin queues a transfer of buf in q, which is e.sends or e.recvs. If buf is empty, or the channel
// has ended, the transfer is not queued, and completes with the error of the channel, or nil if the
// channel has not ended. If the channel cannot copy the memory of buf, or no event can be recorded on
// its stream, the transfer completes with an error, and is queued without its done function, because the peer
// counts it. In all these cases done is called on another goroutine. While a transfer is queued, q
// retains buf and done.
func (e *end) begin(q *transfer.Queue, id uint64, buf device.Buffer, done func(error)) {
	if buf.Len() == 0 {
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
		return
	}
	t, err := e.newTransfer(q, id, buf, done)
	if err != nil {
		t.Done = nil
		e.lifecycle.CompleteAsync(done, e.wrapError(err))
	}
	if q.Push(t) {
		return
	}
	t.CancelWait()
	if t.Done != nil {
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
	}
}

// newTransfer returns a transfer of buf for q. One of host memory waits for buf's stream. One of a
// device kind is ready at once: a Send has the event for which the stream of the receiver waits.
// After an error, which is about the memory or its stream, the transfer is ready too.
func (e *end) newTransfer(q *transfer.Queue, id uint64, buf device.Buffer, done func(error)) (t transfer.Transfer, err error) {
	t = transfer.Transfer{ID: id, Buf: buf, Done: done}
	switch {
	case e.kind == nil && buf.IsHost():
		return transfer.New(e.lifecycle.Context(), id, buf, done)
	case e.kind == nil:
		err = device.ErrMemory
	case q == e.sends:
		t.Written, err = recordWritten(e.kind, buf)
	default:
		err = checkMemory(e.kind, buf)
	}
	return t, err
}

func (e *end) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	e.abortSend(id, cause)
	e.abortRecv(id, cause)
}

func (e *end) Close(cause error) error { return e.lifecycle.Close(cause) }

func (e *end) fail(err error) { e.lifecycle.Fail(e.wrapError(err)) }

func (e *end) wrapError(err error) error { return wrapError(e.name, e.peer, err) }

// wrapError returns err, which must not be nil, as a [*channel.Error] with the channel's name and
// peer. If err matches transport.ErrFrame, the result also matches channel.ErrProtocol.
func wrapError(name, peer string, err error) error {
	if errors.Is(err, transport.ErrFrame) {
		err = protocolError("%w", err)
	}
	return &channel.Error{Channel: name, Peer: peer, Err: err}
}

// protocolError returns an error that matches channel.ErrProtocol, because the peer has violated
// the protocol. format and args make its text as in fmt.Errorf.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{channel.ErrProtocol}, args...)...)
}

// batch is the maximum number of announcements per write.
const batch = 64

// pending is a Send that has been announced.
type pending struct {
	id          uint64
	done        func(error) // nil after an Abort
	description *description
}

// announcer is the state of the goroutine that runs announce.
type announcer struct {
	route  *route
	frames []transport.Frame
}

// announce describes the tensors in e.sends, in order, and sends their announcements, until the
// channel ends or the connection fails. It returns the error, which is never nil.
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

// nextBatch blocks until e.sends has a tensor and the work of its stream has ended. It moves this
// tensor, and those queued directly after it that are ready, from e.sends to e.pending, and sets
// e.announcer.frames to their announcements, at most batch. A tensor whose stream failed is
// announced too, but revoked. The error is that of the channel after its end.
func (e *end) nextBatch() error {
	t, err := e.sends.Wait(e.lifecycle.Context())
	if err != nil {
		return err
	}
	fault := t.WaitReady()
	if err := e.lifecycle.Err(); err != nil {
		return err
	}
	e.announcer.frames = e.announcer.frames[:0]
	e.describeFront(fault)
	for range batch - 1 {
		t, ok := e.sends.Peek(0)
		if !ok || !t.Ready() {
			break
		}
		e.describeFront(nil)
	}
	return nil
}

// describeFront moves the first transfer of e.sends to e.pending, describes its memory to the
// receiver, and appends its announcement to e.announcer.frames. fault is the error of the work on
// the transfer's stream, or nil if its memory is ready. If fault is not nil the transfer completes
// with an error that wraps fault, on another goroutine, unless the transfer was aborted. A tensor
// with a fault, or one that was aborted, is announced too, to keep the order, but its description
// is revoked. describeFront locks e.mu.
func (e *end) describeFront(fault error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.sends.Pop()
	if t.Done != nil && fault != nil {
		e.lifecycle.CompleteAsync(t.Done, e.wrapError(fault))
		t.Done = nil
	}
	o := e.reuseDescription(&t)
	e.announcer.route.add(o)
	e.announcer.add(wire.XTHDescriptor{Ptr: o.address()})
	e.pending.Push(pending{id: t.ID, done: t.Done, description: o})
}

// reuseDescription returns a description of the memory of t: one taken from e.spare if there is
// one, and otherwise a new one. If t was aborted the description is already revoked. The caller
// holds mu.
func (e *end) reuseDescription(t *transfer.Transfer) *description {
	if len(e.spare) == 0 {
		e.spare = append(e.spare, newDescription())
	}
	last := len(e.spare) - 1
	o := e.spare[last]
	e.spare = e.spare[:last]
	o.reset(t.Buf, t.Written)
	if t.Done == nil {
		o.revoke()
	}
	return o
}

// add appends a frame with the encoding of d to a.frames. It reuses the memory of a frame of an
// earlier batch, which must have been written.
func (a *announcer) add(d wire.XTHDescriptor) {
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

// complete reads completions. For each it completes the oldest announced Send, with the result that
// the receiver stored in the description. It continues until reading fails or the peer breaks the
// protocol, and returns the error, which is never nil.
func (e *end) complete() error {
	for {
		n, err := e.completions.NextFrame()
		if err != nil {
			return err
		}
		if n != 0 {
			return protocolError("a completion of %d bytes", n)
		}
		done, result, err := e.popPending()
		if err != nil {
			return err
		}
		if result != nil {
			result = e.wrapError(result)
		}
		if done != nil {
			done(result)
		}
	}
}

// popPending removes the oldest announced Send. It returns the done function of the Send, or nil if
// the Send was aborted, and result, which the receiver stored in the description: nil if all bytes
// were copied. err matches channel.ErrProtocol if no Send is announced or the receiver has not
// finished the tensor; nothing is removed then.
func (e *end) popPending() (done func(error), result, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pending.Len() == 0 {
		return nil, nil, protocolError("a completion without a tensor")
	}
	result, over := e.pending.At(0).description.outcome()
	if !over {
		return nil, nil, protocolError("a completion of a tensor that was not copied")
	}
	p := e.pending.Pop()
	if p.done != nil { // otherwise the goroutine that revokes it may still use it
		e.spare = append(e.spare, p.description)
	}
	return p.done, result, nil
}

// abortSend completes the Send with the given id with cause, on another goroutine. If the tensor
// has been announced, that goroutine first revokes its description, which waits until the receiver
// does not use the memory. Otherwise the tensor is still announced to the peer later, to keep the
// order, but revoked. An unknown id, and one that was aborted before, is ignored.
func (e *end) abortSend(id uint64, cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if done, ok := e.sends.Cancel(id); ok {
		e.lifecycle.CompleteAsync(done, cause)
		return
	}
	for i := range e.pending.Len() {
		if p := e.pending.At(i); p.id == id && p.done != nil {
			o, done := p.description, p.done
			p.done = nil
			e.lifecycle.Go(func() {
				o.revoke()
				done(cause)
			})
		}
	}
}

// revokeAll revokes the descriptions of all announced tensors, and completes those Sends that were
// not aborted with the error of the channel, which must have ended. It waits until the receiver has
// copied the chunk that it is copying. A receiver that reads an announcement later finds the
// description revoked.
func (e *end) revokeAll() {
	e.mu.Lock()
	remaining := e.pending.Clear()
	e.mu.Unlock()
	for _, p := range remaining {
		p.description.revoke()
		if p.done != nil {
			p.done(e.lifecycle.Err())
		}
	}
}
