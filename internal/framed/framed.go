// Package framed moves transfers as frames of one connection, in order: the k-th
// frame is the k-th transfer. That is how TensorPipe's channels carry host
// memory, each over one connection or several.
package framed

import (
	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A batch of small transfers shares a write; a larger one has it for itself, so
// that the sender learns soon that its memory is free.
const (
	batchFrames = 64
	batchBytes  = 64 << 10
)

// voidBytes is the memory through which a frame goes that is thrown away: little, for
// a channel may have many lines.
const voidBytes = 32 << 10

// arrivalStep bounds the bytes that arrive before they are reported.
const arrivalStep = 1 << 20

// Line is one connection. Transfers may be given to it before the connection
// is: they wait. All of them are over when the life is, and either Run or Drain
// must be called for that.
type Line struct {
	life         *transfer.Life
	explain      func(error) error
	arrived      func(bytes int)
	conn         transport.Conn
	sends, recvs *transfer.Queue

	// Scratch of the writer and of the reader.
	frames   []transport.Frame
	segments [][]byte
}

// New returns a line within life, which ends when something is wrong with the
// connection; explain turns that into the error for the pipe. arrived is called as
// [Fill] does.
func New(life *transfer.Life, explain func(error) error, arrived func(bytes int)) *Line {
	return &Line{life: life, explain: explain, arrived: arrived, sends: transfer.NewQueue(), recvs: transfer.NewQueue()}
}

// Send queues a transfer. It returns false once the life is over.
func (l *Line) Send(t transfer.Transfer) bool { return l.sends.Push(t) }

// Recv is Send in the other direction.
func (l *Line) Recv(t transfer.Transfer) bool { return l.recvs.Push(t) }

// Discard is Recv of n bytes that are thrown away.
func (l *Line) Discard(id uint64, n int, done func(error)) bool {
	return l.recvs.Push(transfer.Transfer{ID: id, Void: n, Done: done})
}

// EndRecv says that no further transfer will be received: a frame for which none waits
// ends the life like the end of the connection.
func (l *Line) EndRecv() { l.recvs.End() }

// Has reports whether a transfer with that id is waiting or under way.
func (l *Line) Has(id uint64) bool { return l.sends.Has(id) || l.recvs.Has(id) }

// Run moves what is queued over conn, on goroutines of the life, whose end must
// close conn. The reader is always at the connection, so a peer that goes away
// is noticed while nothing is being transferred.
func (l *Line) Run(conn transport.Conn) {
	l.conn = conn
	l.life.Go(func() { l.serve(l.write, l.sends) })
	l.life.Go(func() { l.serve(l.read, l.recvs) })
}

// Drain finishes what is queued on a line that will not run, when the life is
// over.
func (l *Line) Drain() {
	l.life.Drain(l.sends)
	l.life.Drain(l.recvs)
}

// serve works on q until the life ends, then finishes what is left.
func (l *Line) serve(work func() error, q *transfer.Queue) {
	l.life.Fail(l.explain(work()))
	l.life.Drain(q)
}

// write sends what is queued, in order.
func (l *Line) write() error {
	for {
		if err := l.gather(); err != nil {
			return err
		}
		step.Here()
		err := l.conn.WriteFrames(l.frames...)
		for i := range l.frames {
			clear(l.frames[i]) // the memory is not ours any more
		}
		if err != nil {
			return err
		}
		for range l.frames {
			l.sends.Pop().Done(nil)
		}
	}
}

// gather waits for a transfer to send and makes frames of it and of small ones
// right behind it.
func (l *Line) gather() error {
	first, err := l.sends.Wait(l.life.Context())
	if err == nil {
		err = first.WaitReady()
	}
	l.frames = l.frames[:0]
	for t, size := first, 0; err == nil; {
		l.add(t.Buf)
		size += t.Buf.Len()
		next, ok := l.sends.Peek(len(l.frames))
		if !ok || !next.Ready() || len(l.frames) == batchFrames || size+next.Buf.Len() > batchBytes {
			break
		}
		t = next
	}
	return err
}

// add makes a frame of b, in the memory of a frame written before.
func (l *Line) add(b device.Buffer) {
	n := len(l.frames)
	if n == cap(l.frames) {
		l.frames = append(l.frames, nil)
	}
	l.frames = l.frames[:n+1]
	l.frames[n] = b.AppendSegments(l.frames[n][:0])
}

// read waits for frames at all times, and puts each into the memory whose turn
// it is.
func (l *Line) read() error {
	for {
		n, err := l.conn.NextFrame()
		if err != nil {
			return err
		}
		if err := l.fill(n); err != nil {
			return err
		}
		step.Here()
		l.recvs.Pop().Done(nil)
	}
}

// fill reads a frame of n bytes into the front of the queue, which it waits for.
func (l *Line) fill(n int64) error {
	step.Here()
	t, err := l.recvs.Wait(l.life.Context())
	if err != nil {
		return err
	}
	if want := int64(t.Buf.Len() + t.Void); n != want {
		return &channel.LengthError{Want: want, Got: n}
	}
	if t.Void > 0 {
		return l.skip(t.Void)
	}
	if err := t.WaitReady(); err != nil {
		return err
	}
	l.segments = t.Buf.AppendSegments(l.segments[:0])
	defer clear(l.segments)
	return Fill(l.conn, l.arrived, l.segments)
}

// Fill reads the next bytes of a frame into segments, which it changes. Unless it is
// nil, arrived is called with the number of bytes after each MiB, and at the end.
func Fill(conn transport.Conn, arrived func(bytes int), segments [][]byte) error {
	for i, rest := range segments {
		for len(rest) > 0 {
			segments[i] = rest[:min(len(rest), arrivalStep)]
			if err := conn.ReadBody(segments[i : i+1]...); err != nil {
				return err
			}
			rest = rest[len(segments[i]):]
			if arrived != nil {
				arrived(len(segments[i]))
			}
		}
	}
	return nil
}

// skip throws away the n bytes of a frame.
func (l *Line) skip(n int) error {
	piece := make([]byte, min(n, voidBytes))
	for n > 0 {
		piece = piece[:min(n, len(piece))]
		if err := l.conn.ReadBody(piece); err != nil {
			return err
		}
		n -= len(piece)
	}
	return nil
}
