// Package transfer has what all channels share: transfers that wait for their stream, queues of
// them, and the [Lifecycle] of one end of a channel. A Lifecycle calls each done function exactly
// once and never within the call that began the transfer, reports failures to the pipe, and waits
// for all goroutines when it is closed.
package transfer

import (
	"context"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Transfer is one Send or Recv. It belongs to the queue that holds it; the goroutine that removes
// it from the queue must call Done once, unless it is nil.
type Transfer struct {
	ID        uint64
	Buf       device.Buffer
	Done      func(error) // nil after Queue.Cancel
	Discarded int         // number of bytes to receive and drop, if there is no Buf

	// Written is set by channels that enqueue their copies instead of waiting: the copy out of Buf
	// must wait for it. It belongs to the owner of the Transfer.
	Written device.Event

	order *order // nil if the memory is valid at once
}

// order is the wait for the work of the stream on which the memory is valid.
type order struct {
	ready  device.Event
	ctx    context.Context
	cancel context.CancelFunc
	passed atomic.Bool // the work is done, and ready released
}

// pass records that the work is done.
func (o *order) pass() {
	o.cancel() // releases the context; nothing waits for it
	if !o.passed.Swap(true) {
		o.ready.Release()
	}
}

// New returns a transfer of buf with this id, which is ready when the work that is now enqueued on
// buf's stream has completed. It does not block. It retains buf and done. To release resources, the
// caller must call WaitReady or CancelWait, or Ready until that returns true. WaitReady also
// returns when ctx ends. The error of New is that of recording an event on the stream; the returned
// transfer then has id, buf and done, but nothing to wait for or to release.
func New(ctx context.Context, id uint64, buf device.Buffer, done func(error)) (Transfer, error) {
	t := Transfer{ID: id, Buf: buf, Done: done}
	s := buf.Stream()
	if s == nil {
		return t, nil
	}
	ready, err := s.Record()
	if err != nil {
		return t, err
	}
	t.order = &order{ready: ready}
	t.order.ctx, t.order.cancel = context.WithCancel(ctx)
	return t, nil
}

// Ready reports whether the memory may be accessed now, and releases the resources of the wait if
// so. It does not block. It also returns false if the work of the stream has failed; WaitReady then
// returns the error.
func (t *Transfer) Ready() bool {
	if t.order == nil || t.order.passed.Load() {
		return true
	}
	done, err := t.order.ready.Done()
	if !done || err != nil {
		return false
	}
	t.order.pass()
	return true
}

// WaitReady blocks until the memory may be accessed, and returns nil. If the work on the stream
// fails it returns the error of that work. If the context of New ends or CancelWait is called, it
// returns the error of the context, unless the memory is ready. After an error the memory must not
// be accessed. It releases the resources of the wait.
func (t *Transfer) WaitReady() error {
	if t.order == nil || t.order.passed.Load() {
		return nil
	}
	err := t.order.ready.Synchronize(t.order.ctx)
	if err == nil {
		t.order.pass()
	}
	t.order.cancel()
	return err
}

// CancelWait ends the wait for the stream, if there is one, and releases its resources. It does not
// block. A call of WaitReady that is blocked then returns an error, as do later calls unless the
// memory is ready. CancelWait may be called repeatedly and concurrently with WaitReady.
func (t *Transfer) CancelWait() {
	if t.order != nil {
		t.order.cancel()
	}
}
