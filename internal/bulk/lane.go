package bulk

import (
	"cmp"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
)

// lane is one channel of a Mover. Its fields are guarded by Mover.mu.
type lane struct {
	m       *Mover
	number  uint16
	running int   // transfers whose done function has not returned
	closed  error // the cause of Close, nil before
}

func (l *lane) Send(id uint64, src device.Buffer, done func(error)) {
	l.begin(&l.m.out, id, src, done, false)
}

func (l *lane) Recv(id uint64, dst device.Buffer, done func(error)) {
	op, sendReady := l.begin(&l.m.in, id, dst, done, false)
	switch {
	case sendReady:
		l.m.cfg.Ready(l.number, id)
	case op != nil:
		l.m.request(op)
	}
	l.m.returnCredit()
}

// begin adds a transfer of buf to direction s, which calls done once at its end. eager is that of
// the transferOp. For a Recv that the peer does not send eagerly, sendReady is true if the memory is
// ready; the caller must then send READY. For a Recv of an eager transfer whose memory is ready and
// whose bytes have not all come, begin returns the transfer, for which the caller must call request.
// If the memory is not ready, a goroutine waits for the memory and then lets the transfer proceed. If
// the transfer is empty or cannot begin, or has all its bytes, another goroutine calls done. buf is in
// use until done is called.
func (l *lane) begin(s *direction, id uint64, buf device.Buffer, done func(error), eager bool) (begun *transferOp, sendReady bool) {
	t, fault := transfer.New(l.m.lifecycle.Context(), id, buf, done)
	op := &transferOp{Transfer: t, lane: l, eager: eager}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.running++
	if a := l.m.arrivals[op.key()]; s == &l.m.in && a != nil && a.length > 0 {
		op.arrival = a
	}
	var err error
	switch {
	case l.closed != nil:
		err = l.closed
	case l.m.ended:
		err = l.m.lifecycle.Err()
	case !buf.IsHost():
		err = l.m.wrapError(device.ErrMemory)
	case fault != nil:
		err = l.m.wrapError(fault)
	case s.ops[op.key()] != nil:
		err = l.m.wrapError(ErrBusy)
	case op.arrival != nil:
		if err = op.arrival.check(buf.Len()); err != nil {
			err = l.m.wrapError(err)
		}
	}
	if err != nil || buf.Len() == 0 {
		op.CancelWait()
		l.m.completeAsync(op, err)
		return nil, false
	}
	s.add(op)
	if eager {
		l.m.claimCredit(op)
	}
	if op.arrival != nil {
		op.arrival.op = op
	}
	if op.memoryReady = op.Ready(); !op.memoryReady {
		l.m.lifecycle.Go(func() { l.m.waitReady(s, op) })
		return nil, false
	}
	if s == &l.m.out {
		if op.peerReady {
			l.m.queue(op)
		}
		return nil, false
	}
	l.m.open()
	l.m.signalReader()
	if op.arrival == nil {
		return nil, true
	}
	if ended, err := l.m.supply(op); ended {
		l.m.completeAsync(op, err)
		return nil, false
	}
	return op, false
}

func (l *lane) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	l.m.mu.Lock()
	for _, s := range []*direction{&l.m.out, &l.m.in} {
		if op := s.ops[transferKey{l.number, id}]; op != nil && l.m.cancel(s, op, cause) {
			l.m.completeAsync(op, cause)
		}
	}
	if a := l.m.arrivals[transferKey{l.number, id}]; a != nil && a.length > 0 {
		l.m.drop(a)
	}
	l.m.mu.Unlock()
	l.m.returnCredit()
}

// Close implements channel.Channel. It prevents further transfers, cancels those of the lane with
// cause, or channel.ErrClosed if cause is nil, and blocks until all done functions of the lane have
// returned. The reader or the writer completes a transfer whose memory it is using. The error is
// nil.
func (l *lane) Close(cause error) error {
	cause = cmp.Or(cause, channel.ErrClosed)
	l.m.mu.Lock()
	l.closed = cmp.Or(l.closed, cause)
	free := l.m.cancelAll(l, cause)
	l.m.mu.Unlock()
	for _, op := range free {
		l.m.complete(op, cause)
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	for l.running > 0 {
		l.m.completed.Wait()
	}
	return nil
}
