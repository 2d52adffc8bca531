package basic

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A batch of small tensors shares a write; a larger one has it for itself, so
// that the sender learns soon that its memory is free.
const (
	batchFrames = 64
	batchBytes  = 64 << 10
)

// end is this process's end of a channel.
type end struct {
	conn         transport.Conn
	peer         string
	life         *transfer.Life
	sends, recvs *transfer.Queue

	// Scratch of the writer and of the reader.
	frames   []transport.Frame
	segments [][]byte
}

func newEnd(link channel.Link) *end {
	e := &end{
		conn:  link.Conns[0],
		peer:  link.Peer,
		life:  transfer.NewLife(link.Conns[0].Close, link.Broken),
		sends: transfer.NewQueue(),
		recvs: transfer.NewQueue(),
	}
	e.life.Go(func() { e.serve(e.write, e.sends) })
	e.life.Go(func() { e.serve(e.read, e.recvs) })
	return e
}

func (e *end) Send(id uint64, src device.Buffer, done func(error)) { e.begin(e.sends, id, src, done) }

func (e *end) Recv(id uint64, dst device.Buffer, done func(error)) { e.begin(e.recvs, id, dst, done) }

// begin queues a transfer. One that cannot take place leaves a gap that the wire
// form has no word for.
func (e *end) begin(q *transfer.Queue, id uint64, buf device.Buffer, done func(error)) {
	t, err := transfer.New(e.life.Context(), id, buf, done)
	if !buf.IsHost() {
		err = device.ErrMemory
	}
	if err != nil {
		err = e.explain(err)
		e.life.Fail(err)
		e.life.Later(done, err)
		return
	}
	if buf.Len() == 0 || !q.Push(t) {
		e.life.Later(done, e.life.Err())
	}
}

func (e *end) Abort(id uint64, cause error) {
	if e.sends.Has(id) || e.recvs.Has(id) {
		e.life.Fail(cause)
	}
}

func (e *end) Close(cause error) error { return e.life.Close(cause) }

// serve works on q until the channel ends, then finishes what is left.
func (e *end) serve(work func() error, q *transfer.Queue) {
	e.life.Fail(e.explain(work()))
	e.life.Drain(q)
}

// explain puts a name to an error. What the transport finds wrong with a frame is
// the peer's doing.
func (e *end) explain(err error) error {
	if errors.Is(err, transport.ErrFrame) {
		err = fmt.Errorf("%w: %w", channel.ErrProtocol, err)
	}
	return &channel.Error{Channel: Name, Peer: e.peer, Err: err}
}

// write sends what is queued, in order.
func (e *end) write() error {
	for {
		if err := e.gather(); err != nil {
			return err
		}
		err := e.conn.WriteFrames(e.frames...)
		for i := range e.frames {
			clear(e.frames[i]) // the memory is not ours any more
		}
		if err != nil {
			return err
		}
		for range e.frames {
			e.sends.Pop().Done(nil)
		}
	}
}

// gather waits for a tensor to send and makes frames of it and of small ones
// right behind it.
func (e *end) gather() error {
	first, err := e.sends.Wait(e.life.Context())
	if err == nil {
		err = first.WaitReady()
	}
	e.frames = e.frames[:0]
	for t, size := first, 0; err == nil; {
		e.add(t.Buf)
		size += t.Buf.Len()
		next, ok := e.sends.Peek(len(e.frames))
		if !ok || !next.Ready() || len(e.frames) == batchFrames || size+next.Buf.Len() > batchBytes {
			break
		}
		t = next
	}
	return err
}

// add makes a frame of b, in the memory of a frame written before.
func (e *end) add(b device.Buffer) {
	n := len(e.frames)
	if n == cap(e.frames) {
		e.frames = append(e.frames, nil)
	}
	e.frames = e.frames[:n+1]
	e.frames[n] = b.AppendSegments(e.frames[n][:0])
}

// read waits for frames at all times, and puts each into the memory whose turn
// it is.
func (e *end) read() error {
	for {
		n, err := e.conn.NextFrame()
		if err != nil {
			return err
		}
		if err := e.fill(n); err != nil {
			return err
		}
		e.recvs.Pop().Done(nil)
	}
}

// fill reads a frame of n bytes into the front of the queue, which it waits for.
func (e *end) fill(n int64) error {
	t, err := e.recvs.Wait(e.life.Context())
	if err != nil {
		return err
	}
	if want := int64(t.Buf.Len()); n != want {
		return &channel.LengthError{Want: want, Got: n}
	}
	if err := t.WaitReady(); err != nil {
		return err
	}
	e.segments = t.Buf.AppendSegments(e.segments[:0])
	defer clear(e.segments)
	return e.conn.ReadBody(e.segments...)
}
