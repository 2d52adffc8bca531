package pipe

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/device"
)

func (p *compat) write(ctx context.Context, m *Message) error {
	op, err := p.out.enqueue(ctx, m)
	if err != nil {
		return err
	}
	return op.Wait(ctx)
}

// tryWrite takes nothing: messages of this dialect wait where they lie.
func (p *compat) tryWrite(*Message) (bool, error) { return false, nil }

func (p *compat) writeConfirmed(ctx context.Context, m *Message) error {
	if !p.control.exists() {
		return p.errorFor("write", "", ErrNoControl)
	}
	op, err := p.out.enqueue(ctx, m)
	if err != nil {
		return err
	}
	if err := op.Wait(ctx); err != nil {
		return err
	}
	return p.control.awaitRead(ctx, op.number)
}

func (p *compat) writeAsync(ctx context.Context, m *Message) *WriteOp {
	op, err := p.out.enqueue(ctx, m)
	if err != nil {
		return failedOp(err)
	}
	if ctx.Done() != nil {
		p.out.watch(ctx, op)
	}
	return &op.WriteOp
}

// outgoing is a message on its way to the peer.
type outgoing struct {
	WriteOp
	out  *outbox
	msg  *Message
	data int // bytes of payloads and tensors
	cost int // what it takes of the budgets

	// The following are guarded by outbox.mu, as is err, until done is closed.
	number  uint64 // of the message, from 0, once it has started
	state   opState
	unwatch func() bool     // ends the watch on the ctx of WriteAsync
	missing int             // targets that the receiver still has to choose
	named   []device.Device // all targets, once it has
	parts   int             // parts of the message that are still under way
}

// opState is how far a write has come.
type opState int

const (
	opQueued   opState = iota // nothing has left; it can be withdrawn
	opStarted                 // its turn has come
	opComplete                // done is closed
)

func (op *outgoing) cancel(cause error) { op.out.cancel(op, cause) }

// target is the device that tensor i goes to.
func (op *outgoing) target(i int) device.Device {
	if op.named != nil {
		return op.named[i]
	}
	return op.msg.Tensors[i].TargetDevice
}
