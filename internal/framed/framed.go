// Package framed moves transfers as frames of one connection, in order: the k-th frame is the k-th
// transfer. TensorPipe's channels send host memory this way, each over one connection or several.
package framed

import (
	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Small transfers are written in batches. A large one is written on its own, so that its sender soon
// learns that the memory can be reused.
const (
	batchFrames = 64
	batchBytes  = 64 << 10
)

// discardBufferSize is the size of the buffer through which a dropped frame passes. It is small because
// a channel may have many Movers.
const discardBufferSize = 32 << 10

// reportInterval is the greatest number of bytes that are received between two calls of arrived.
const reportInterval = 1 << 20

// Mover moves transfers over one connection, in order. Transfers can be queued before Run is called
// with the connection. The owner must call Run, or Drain after the end of the Lifecycle, so that all
// transfers complete.
type Mover struct {
	lifecycle    *transfer.Lifecycle
	wrapError    func(error) error
	arrived      func(bytes int)
	conn         transport.Conn
	sends, recvs *transfer.Queue

	// Reused buffers of the writer and of the reader.
	frames   []transport.Frame
	segments [][]byte
}

// New returns a Mover. Its goroutines are those of lifecycle. If the connection fails it ends
// lifecycle with the error, wrapped by wrapError. arrived is called as by [Fill].
func New(lifecycle *transfer.Lifecycle, wrapError func(error) error, arrived func(bytes int)) *Mover {
	return &Mover{lifecycle: lifecycle, wrapError: wrapError, arrived: arrived, sends: transfer.NewQueue(), recvs: transfer.NewQueue()}
}

// Send queues t to be sent. It returns false if the Mover has stopped after the end of the Lifecycle;
// the caller must then complete t.
func (l *Mover) Send(t transfer.Transfer) bool { return l.sends.Push(t) }

// Recv queues t to be received. It returns false if the Mover has stopped after the end of the
// Lifecycle; the caller must then complete t.
func (l *Mover) Recv(t transfer.Transfer) bool { return l.recvs.Push(t) }

// Discard queues a transfer of n bytes, which may be 0, to be received and dropped. done is called as
// for a Recv. Discard returns false if the Mover has stopped after the end of the Lifecycle; the
// caller must then call done.
func (l *Mover) Discard(id uint64, n int, done func(error)) bool {
	return l.recvs.Push(transfer.Transfer{ID: id, Discarded: n, Done: done})
}

// EndRecv announces that no further transfer will be received. A frame for which no transfer is queued
// then ends the Lifecycle with io.EOF, as the end of the connection does.
func (l *Mover) EndRecv() { l.recvs.End() }

// Has reports whether a Send or a Recv with that id is queued or in progress.
func (l *Mover) Has(id uint64) bool { return l.sends.Has(id) || l.recvs.Has(id) }

// Run moves the queued transfers over conn on goroutines of the Lifecycle, and does not block. It may
// be called once. The release function of the Lifecycle must close conn. The reader always reads from
// conn, so that it detects the end of the peer even while nothing is being transferred.
func (l *Mover) Run(conn transport.Conn) {
	l.conn = conn
	l.lifecycle.Go(func() { l.serve(l.write, l.sends) })
	l.lifecycle.Go(func() { l.serve(l.read, l.recvs) })
}

// Drain completes the queued transfers of a Mover for which Run was not called. The Lifecycle must
// have ended.
func (l *Mover) Drain() {
	l.lifecycle.Drain(l.sends)
	l.lifecycle.Drain(l.recvs)
}

// serve calls work, which moves the transfers of q until it fails. It ends the Lifecycle with the
// error, and completes the transfers that are left.
func (l *Mover) serve(work func() error, q *transfer.Queue) {
	l.lifecycle.Fail(l.wrapError(work()))
	l.lifecycle.Drain(q)
}

// write sends the queued transfers in order until that fails, or the Lifecycle ends, and returns the
// error.
func (l *Mover) write() error {
	for {
		if err := l.gather(); err != nil {
			return err
		}
		failpoint.Here()
		err := l.conn.WriteFrames(l.frames...)
		for i := range l.frames {
			clear(l.frames[i]) // drop references to the caller's memory
		}
		if err != nil {
			return err
		}
		for range l.frames {
			l.sends.Pop().Done(nil)
		}
	}
}

// gather waits for a transfer to send. It sets l.frames to a frame of this transfer, and of each small
// one that is queued directly after it and ready. The transfers stay in the queue. The error is that of
// the memory's stream or of the Lifecycle.
func (l *Mover) gather() error {
	first, err := l.sends.Wait(l.lifecycle.Context())
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

// add appends a frame with the memory of b to l.frames, without copying it, reusing the slice of an
// earlier frame.
func (l *Mover) add(b device.Buffer) {
	n := len(l.frames)
	if n == cap(l.frames) {
		l.frames = append(l.frames, nil)
	}
	l.frames = l.frames[:n+1]
	l.frames[n] = b.AppendSegments(l.frames[n][:0])
}

// read receives frames, each into the memory of the next transfer in the queue, until that fails, and
// returns the error.
func (l *Mover) read() error {
	for {
		n, err := l.conn.NextFrame()
		if err != nil {
			return err
		}
		if err := l.fill(n); err != nil {
			return err
		}
		failpoint.Here()
		l.recvs.Pop().Done(nil)
	}
}

// fill waits for the transfer at the front of the queue, and receives the n bytes of a frame into its
// memory, or drops them. The transfer stays in the queue. The error is a [*channel.LengthError] if the
// transfer does not have n bytes, io.EOF if none is queued after EndRecv, or that of the memory's
// stream, the connection or the Lifecycle.
func (l *Mover) fill(n int64) error {
	failpoint.Here()
	t, err := l.recvs.Wait(l.lifecycle.Context())
	if err != nil {
		return err
	}
	if want := int64(t.Buf.Len() + t.Discarded); n != want {
		return &channel.LengthError{Want: want, Got: n}
	}
	if t.Discarded > 0 {
		return l.skip(t.Discarded)
	}
	if err := t.WaitReady(); err != nil {
		return err
	}
	l.segments = t.Buf.AppendSegments(l.segments[:0])
	defer clear(l.segments)
	return Fill(l.conn, l.arrived, l.segments)
}

// Fill reads the next bytes of the present frame of conn into segments, until all are full, and changes
// the elements of segments. The frame must have as many bytes. arrived, if not nil, is called with the
// number of bytes received since its last call, at most reportInterval. The error is that of conn.
func Fill(conn transport.Conn, arrived func(bytes int), segments [][]byte) error {
	for i, rest := range segments {
		for len(rest) > 0 {
			segments[i] = rest[:min(len(rest), reportInterval)]
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

// skip reads and drops the next n bytes of the present frame, which must have as many.
func (l *Mover) skip(n int) error {
	piece := make([]byte, min(n, discardBufferSize))
	for n > 0 {
		piece = piece[:min(n, len(piece))]
		if err := l.conn.ReadBody(piece); err != nil {
			return err
		}
		n -= len(piece)
	}
	return nil
}
