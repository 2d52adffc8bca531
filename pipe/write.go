package pipe

import (
	"context"
)

// Write sends m and returns when all its memory may be reused: the bytes of
// payloads and of tensors over connections are with the kernel, those of
// channels that copy directly are with the receiver. It does not mean that the
// peer has read the message. Tensors on a device with streams have been
// enqueued on their stream.
//
// A message whose tensors leave the target device to the receiver has not left
// before the receiver has called Read: two ends that write such messages to
// each other must not both wait in Write before they read.
//
// It waits while the limits on bytes in flight are exceeded. A cancelled ctx
// withdraws a message of which nothing has left; later than that it gives the
// message up, and in the compatible dialect, which cannot give up half a message,
// the pipe. Either way nobody touches m any more when Write returns. In the native
// dialect small parts in host memory are copied: a message of nothing else has
// left when that is done. So it is with up to 2 MiB through shared memory, of which
// what the ring has no room for is copied if ctx ends.
func (p *Pipe) Write(ctx context.Context, m *Message) error { return p.dialect.write(ctx, m) }

// TryWrite is Write that does not wait, and reports whether it has taken m. It takes
// what the native dialect copies, while there is room within the limits on bytes in
// flight and nobody waits for that; nothing in the compatible dialect. It is for a
// goroutine that the peer may be waiting for, as one that reads and answers: two of
// these that wait in Write for each other wait for ever. An error is that of Write;
// where it just has not taken m there is none.
func (p *Pipe) TryWrite(m *Message) (taken bool, err error) { return p.dialect.tryWrite(m) }

// WriteConfirmed is Write that returns when the peer has read the message, and
// all before it, or discarded them; what a peer that closes leaves unread does
// not count. It fails with ErrNoControl, and sends nothing, if the peer is not
// one of ours. If ctx ends after the message has left, the error matches
// ErrUnconfirmed and the pipe goes on.
func (p *Pipe) WriteConfirmed(ctx context.Context, m *Message) error {
	return p.dialect.writeConfirmed(ctx, m)
}

// WriteAsync is Write that does not wait for the message to leave. Many may be
// in flight; they leave in order. It does wait while the limits on bytes in
// flight are exceeded. m and its memory belong to the pipe until the operation
// is done. A cancelled ctx has the effect that it has on Write. A message that
// cannot be sent at all is an operation that is done, with the error.
func (p *Pipe) WriteAsync(ctx context.Context, m *Message) *WriteOp {
	return p.dialect.writeAsync(ctx, m)
}

// WriteOp is a message on its way.
type WriteOp struct {
	of   canceler
	done chan struct{}
	err  error // the first error of a part, valid once done is closed
}

// canceler is a dialect's side of a WriteOp. cancel makes it end soon; a write
// that is done is left alone.
type canceler interface{ cancel(cause error) }

// failedOp is an operation that never began.
func failedOp(err error) *WriteOp {
	op := &WriteOp{of: ended{}, done: make(chan struct{}), err: err}
	close(op.done)
	return op
}

// ended is the dialect's side of an operation that is done from the start.
type ended struct{}

func (ended) cancel(error) {}

// Done is closed when the operation is done and Err may be called.
func (op *WriteOp) Done() <-chan struct{} { return op.done }

// Err is the result of the operation, nil until it is done.
func (op *WriteOp) Err() error {
	select {
	case <-op.done:
		return op.err
	default:
		return nil
	}
}

// Wait returns the result when the operation is done. If ctx ends before, the
// operation is cancelled as by the ctx of WriteAsync, and Wait still returns
// only when nobody touches the message any more.
func (op *WriteOp) Wait(ctx context.Context) error {
	select {
	case <-op.done:
		return op.err
	case <-ctx.Done():
		op.of.cancel(context.Cause(ctx))
		<-op.done
		return op.err
	}
}
