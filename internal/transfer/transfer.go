// Package transfer holds what every channel needs around the moving of bytes:
// transfers that wait for their stream, queues of them, and the [Life] of one
// end, which calls each done exactly once and never inside the call that began
// the transfer, tells the pipe when it breaks, and waits for everything when it
// is closed.
package transfer

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Transfer is one Send or Recv on its way. It belongs to the queue that holds
// it; whoever takes it out calls Done.
type Transfer struct {
	ID   uint64
	Buf  device.Buffer
	Done func(error) // nil once Take has taken it
	Void int         // bytes to be thrown away, where there is no Buf for them

	order *order // nil: the memory is valid at once
}

// order is the wait for the stream on which memory is valid.
type order struct {
	ready  device.Event
	ctx    context.Context
	giveUp context.CancelFunc
}

// New describes a transfer that may touch buf when the present work of buf's
// stream has completed. Waiting for that ends with ctx at the latest.
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
	t.order.ctx, t.order.giveUp = context.WithCancel(ctx)
	return t, nil
}

// Ready reports whether the memory may be touched without waiting.
func (t *Transfer) Ready() bool {
	if t.order == nil {
		return true
	}
	done, err := t.order.ready.Done()
	if !done || err != nil {
		return false
	}
	t.order.giveUp() // there is nothing to wait for
	return true
}

// WaitReady waits until the memory may be touched. The error is that of the
// device's work, or says that waiting was given up.
func (t *Transfer) WaitReady() error {
	if t.order == nil {
		return nil
	}
	defer t.order.giveUp()
	return t.order.ready.Synchronize(t.order.ctx)
}

// GiveUp ends the wait for the stream, if there is one. WaitReady then returns
// an error unless it was through before.
func (t *Transfer) GiveUp() {
	if t.order != nil {
		t.order.giveUp()
	}
}
