package framed

import (
	"fmt"
	"net"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Writer writes queued frames to one connection, in batches. F is a frame before it is encoded. All
// methods may be called concurrently, Run once.
type Writer[F any] struct {
	// Written, if not nil, is called by Run for each frame that it has written. It is set before Run.
	Written func(f F)

	encode func(dst []byte, f F) []byte

	mu     sync.Mutex
	queue  fifo.Queue[F]
	closed bool
	work   sync.Cond // queue has grown, or closed is set
}

// NewWriter returns a Writer with an empty queue. For each frame f, Run calls encode with the
// Writer's mutex held; encode appends the encoding of f to dst and returns the extended slice.
// encode must not keep dst and must not call the Writer.
func NewWriter[F any](encode func(dst []byte, f F) []byte) *Writer[F] {
	w := &Writer[F]{encode: encode}
	w.work.L = &w.mu
	return w
}

// Push queues f, which Run will encode and write. It does not block, so that the caller may hold
// locks. f may be written, and the peer may react to it, before Push returns. After Close, f is
// never written.
func (w *Writer[F]) Push(f F) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue.Push(f)
	w.work.Signal()
}

// Close makes Run return [net.ErrClosed]. Frames that are still queued are not written. Close does
// not wait for Run and does not interrupt a write in progress; closing the connection does.
func (w *Writer[F]) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.work.Signal()
}

// Run writes the queued frames to conn, in order, and waits for further ones. It returns the error
// of conn when a write fails, or [net.ErrClosed] after Close. It does not close conn.
func (w *Writer[F]) Run(conn transport.Conn) error {
	var frames []transport.Frame // their memory is reused
	var batch [batchFrames]F
	for {
		w.mu.Lock()
		for w.queue.Len() == 0 && !w.closed {
			w.work.Wait()
		}
		n := 0
		for ; n < batchFrames && w.queue.Len() > 0 && !w.closed; n++ {
			if n == len(frames) {
				frames = append(frames, transport.Frame{nil})
			}
			batch[n] = w.queue.Pop()
			frames[n][0] = w.encode(frames[n][0][:0], batch[n])
		}
		w.mu.Unlock()
		if n == 0 {
			return net.ErrClosed
		}
		if err := conn.WriteFrames(frames[:n]...); err != nil {
			return err
		}
		if w.Written != nil {
			for _, f := range batch[:n] {
				w.Written(f)
			}
		}
		clear(batch[:n])
	}
}

// Reader reads small frames of one connection.
type Reader struct {
	Conn  transport.Conn
	Limit int64 // size of the largest frame that is expected

	buf  [64]byte
	part [1][]byte
}

// Next reads the next frame and returns its bytes, at least one. A frame of up to 64 bytes is in
// memory of r and valid until the next call; a larger one is in new memory. If the frame is empty
// or larger than r.Limit, the error matches channel.ErrProtocol. Otherwise the error is that of the
// connection. After an error the bytes have no meaning.
func (r *Reader) Next() ([]byte, error) {
	n, err := r.Conn.NextFrame()
	if err != nil {
		return nil, err
	}
	if n == 0 || n > r.Limit {
		return nil, fmt.Errorf("%w: a frame of %d bytes, want 1 to %d", channel.ErrProtocol, n, r.Limit)
	}
	p := r.buf[:min(n, int64(len(r.buf)))]
	if n > int64(len(r.buf)) {
		p = make([]byte, n)
	}
	r.part[0] = p
	return p, r.Conn.ReadBody(r.part[:]...)
}
