package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// arrival is an Incoming of the compatible dialect.
type arrival struct {
	Incoming
	inbox   *inbox
	number  uint64          // its place among all messages, from 0
	turn    <-chan struct{} // closed when the message before has started
	started chan struct{}   // closed when memory has been given for this one
	held    int             // its share of the read-ahead bytes
	memory  charge          // its frame, decoded, and payloads read ahead
	claimed atomic.Bool     // someone reads or discards it

	ahead   [][]byte      // payloads read ahead, nil if they wait for memory
	dst     [][]byte      // memory for payloads, nil to discard them
	body    chan struct{} // closed when the payloads have arrived or failed
	bodyErr error

	tensors sync.WaitGroup
	mu      sync.Mutex
	err     error // the first error of a tensor
}

func (in *arrival) read(ctx context.Context, a Allocation) error {
	return in.noted(in.receive(ctx, a))
}

func (in *arrival) discard(ctx context.Context) error { return in.noted(in.forgo(ctx)) }

// noted counts a message as read by the application, unless that failed.
func (in *arrival) noted(err error) error {
	if err == nil {
		in.inbox.pipe.noteRead(in.number)
	}
	return err
}

// forgo lets the message go by, which does not count as read.
func (in *arrival) forgo(ctx context.Context) error {
	a, err := in.scratch()
	if err != nil {
		return in.errorFor(err)
	}
	return in.receive(ctx, a)
}

func (in *arrival) isInline() bool { return in.desc.Bytes() == 0 }

func (in *arrival) release() {} // it is not used again

// receive takes the message's turn and waits for all its parts.
func (in *arrival) receive(ctx context.Context, a Allocation) error {
	if ctx.Err() != nil {
		return in.errorFor(context.Cause(ctx))
	}
	if !in.claimed.CompareAndSwap(false, true) {
		return in.errorFor(ErrAlreadyRead)
	}
	if err := in.awaitTurn(ctx); err != nil {
		in.claimed.Store(false)
		return in.errorFor(err)
	}
	stop := in.failAtEndOf(ctx)
	in.start(a)
	err := in.wait()
	in.memory.release()
	if !stop() && errors.Is(err, ErrCancelled) {
		err = fmt.Errorf("%w: %w", ErrCancelled, context.Cause(ctx))
	}
	if err != nil {
		return in.errorFor(err)
	}
	in.inbox.traffic.add(in.desc.Bytes())
	return nil
}

// failAtEndOf takes the pipe down when ctx ends before stop is called. stop
// reports whether it came first.
func (in *arrival) failAtEndOf(ctx context.Context) (stop func() bool) {
	if ctx.Done() == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(ctx, func() { in.inbox.pipe.fail(ErrCancelled) })
}

// awaitTurn waits for the message before. What has arrived can be read also when
// the pipe is down.
func (in *arrival) awaitTurn(ctx context.Context) error {
	select {
	case <-in.turn:
		return nil
	default:
	}
	select {
	case <-in.turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-in.inbox.pipe.down:
		return in.inbox.pipe.Err()
	}
}

// start gives the memory to the pipe. Only the message whose turn it is gets
// here, so the order of replies and transfers is that of the messages.
func (in *arrival) start(a Allocation) {
	p := in.inbox.pipe
	in.dst = a.Payloads
	in.answer(a)
	for k, b := range a.Tensors {
		t := &in.desc.Tensors[k]
		if t.Length == 0 || in.inbox.deaf {
			continue
		}
		l := p.laneFor(b.Device(), t.SourceDevice, t.Length)
		in.tensors.Add(1)
		l.take(b, t.Length, func(err error) { in.tensorDone(l, t.Length, err) })
	}
	in.inbox.took(in)
	close(in.started)
}

// answer sends the reply. Once this end has announced its close it cannot; then
// the peer sends neither these tensors nor any behind them.
func (in *arrival) answer(a Allocation) {
	p := in.inbox.pipe
	err := in.sendReply(a)
	switch {
	case err == nil:
	case p.isClosing():
		in.inbox.deaf = true
	default:
		p.fail(p.errorFor("read", p.reply.name, in.inbox.blame(err)))
	}
}

// sendReply names the devices that the sender left open.
func (in *arrival) sendReply(a Allocation) error {
	var reply wire.DescriptorReply
	for k, t := range in.desc.Tensors {
		if t.TargetDevice.IsZero() {
			reply.TargetDevices = append(reply.TargetDevices, a.Tensors[k].Device())
		}
	}
	if len(reply.TargetDevices) == 0 {
		return nil
	}
	return in.inbox.pipe.reply.write(reply.Append(nil))
}

func (in *arrival) tensorDone(l *lane, n int, err error) {
	if err == nil {
		l.received.add(n)
	} else {
		failed := in.inbox.pipe.transferFailed("read", l, err)
		in.mu.Lock()
		in.err = cmp.Or(in.err, failed)
		in.mu.Unlock()
	}
	in.tensors.Done()
}

// wait returns when all parts of the message have arrived or failed.
func (in *arrival) wait() error {
	in.tensors.Wait()
	err := in.err
	if in.body != nil {
		<-in.body
		err = cmp.Or(err, in.bodyErr)
	}
	if err != nil {
		return in.inbox.pipe.reason(err)
	}
	for k, p := range in.dst {
		if in.ahead != nil {
			copy(p, in.ahead[k])
		}
	}
	return nil
}

// endBody notes that the payloads have arrived, or will not.
func (in *arrival) endBody(err error) {
	if in.body != nil {
		in.bodyErr = err
		close(in.body)
	}
}

// readPayload reads the announced payload k from the descriptor connection.
func (in *arrival) readPayload(k, size int) error {
	conn := in.inbox.pipe.desc
	switch {
	case in.ahead != nil:
		in.ahead[k] = make([]byte, size)
		return conn.ReadBody(in.ahead[k])
	case in.dst != nil:
		return framed.Fill(conn, in.inbox.pipe.arrived, [][]byte{in.dst[k]})
	default:
		return discardBody(conn, size)
	}
}
