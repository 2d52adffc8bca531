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

// New returns a Mover whose goroutines run in lifecycle. If the connection fails, or a transfer
// cannot be moved over it, the Mover ends lifecycle with wrapError(the error). While it receives,
// it calls arrived, unless that is nil, with the number of bytes received since the last call, at
// most 1 MiB.
func New(lifecycle *transfer.Lifecycle, wrapError func(error) error, arrived func(bytes int)) *Mover {
	return &Mover{lifecycle: lifecycle, wrapError: wrapError, arrived: arrived, sends: transfer.NewQueue(), recvs: transfer.NewQueue()}
}

// Send queues t to be sent and returns true. The Mover uses t's memory until it calls t.Done, which
// must not be nil. Send returns false if the Mover has stopped after the end of the Lifecycle; the
// caller must then complete t.
func (l *Mover) Send(t transfer.Transfer) bool { return l.sends.Push(t) }

// Recv queues t to be received and returns true. The Mover uses t's memory until it calls t.Done,
// which must not be nil. Recv returns false if the Mover has stopped after the end of the
// Lifecycle; the caller must then complete t.
func (l *Mover) Recv(t transfer.Transfer) bool { return l.recvs.Push(t) }

// Discard queues a transfer with this id and n bytes, which may be 0, to be received and dropped,
// and returns true. The Mover calls done with nil once the bytes are received, or with the error of
// the Lifecycle if the Lifecycle ends before. Discard returns false if the Mover has stopped after
// the end of the Lifecycle; the caller must then call done.
func (l *Mover) Discard(id uint64, n int, done func(error)) bool {
	return l.recvs.Push(transfer.Transfer{ID: id, Discarded: n, Done: done})
}

// EndRecv announces that no further transfer will be received. If a frame arrives for which no
// transfer is queued, the Mover then ends the Lifecycle with io.EOF, wrapped by the function given
// to New, as it does when the peer ends the connection.
func (l *Mover) EndRecv() { l.recvs.End() }

// Has reports whether a transfer with this id is queued or in progress, to be sent, received or
// discarded.
func (l *Mover) Has(id uint64) bool { return l.sends.Has(id) || l.recvs.Has(id) }

// Run starts two goroutines of the Lifecycle, which move the queued transfers over conn, and
// returns. It may be called once. Run does not take conn over: the release function of the
// Lifecycle must close conn. One goroutine reads from conn even while no transfer is queued, so
// that the Mover detects the end of the peer.
func (l *Mover) Run(conn transport.Conn) {
	l.conn = conn
	l.lifecycle.Go(func() { l.serve(l.write, l.sends) })
	l.lifecycle.Go(func() { l.serve(l.read, l.recvs) })
}

// Drain completes all queued transfers with the error of the Lifecycle, and makes further calls of
// Send, Recv and Discard return false. It is for a Mover whose Run is never called. The Lifecycle
// must have ended.
func (l *Mover) Drain() {
	l.lifecycle.Drain(l.sends)
	l.lifecycle.Drain(l.recvs)
}

// serve calls work, which moves the transfers of q until it fails. It then ends the Lifecycle with
// the error of work, wrapped by l.wrapError, and completes all transfers in q with the error of the
// Lifecycle.
func (l *Mover) serve(work func() error, q *transfer.Queue) {
	l.lifecycle.Fail(l.wrapError(work()))
	l.lifecycle.Drain(q)
}

// write sends the queued transfers in order and completes each when its frame is written. It
// returns the error of the connection, of a memory's stream or of the Lifecycle, and leaves
// transfers that are not complete in the queue.
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

// gather waits until a transfer is queued and its memory is ready. It sets l.frames to a frame of
// this transfer and of the small transfers queued directly after it, up to a bound or the first one
// whose memory is not ready. The frames refer to the transfers' memory. The transfers stay in the
// queue. The error is that of the memory's stream or of the Lifecycle; l.frames is then empty.
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

// add appends a frame of b to l.frames. The frame refers to b's memory and does not copy it. add
// reuses the slice of a frame that l.frames held before.
func (l *Mover) add(b device.Buffer) {
	n := len(l.frames)
	if n == cap(l.frames) {
		l.frames = append(l.frames, nil)
	}
	l.frames = l.frames[:n+1]
	l.frames[n] = b.AppendSegments(l.frames[n][:0])
}

// read receives frames, each into the memory of the next transfer in the queue, and completes that
// transfer. It returns the error of the connection, of fill or of the Lifecycle, and leaves
// transfers that are not complete in the queue.
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

// fill waits for the transfer at the front of the queue, and receives a frame of n bytes into its
// memory, or drops the bytes if the transfer is to be discarded. The transfer stays in the queue.
// If the transfer does not have n bytes, the error is a [*channel.LengthError]. If none is queued
// after EndRecv, it is io.EOF. Otherwise it is that of the memory's stream, the connection or the
// Lifecycle.
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

// Fill reads the next bytes of the current frame of conn into segments until all of them are full.
// The frame must have that many bytes left. Fill changes the elements of segments. If arrived is
// not nil, Fill calls it with the number of bytes received since the last call, at most 1 MiB. The
// error is that of conn. Fill keeps no memory.
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

// skip reads and drops the next n bytes of the current frame of the connection, which must have
// that many bytes left. The error is that of the connection.
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
