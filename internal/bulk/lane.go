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
	l.begin(&l.m.out, id, src, done)
}

func (l *lane) Recv(id uint64, dst device.Buffer, done func(error)) {
	if l.begin(&l.m.in, id, dst, done) {
		l.m.cfg.Ready(l.number, id)
	}
}

// begin adds a transfer of buf to direction s, which calls done once at its end. It returns true if
// the transfer has begun and its memory is ready; for a Recv the caller must then send READY. If
// the memory is not ready, begin returns false, and a goroutine waits for the memory and then lets
// the transfer proceed. If the transfer is empty or cannot begin, begin returns false, and another
// goroutine calls done. buf is in use until done is called.
func (l *lane) begin(s *direction, id uint64, buf device.Buffer, done func(error)) (memoryReady bool) {
	t, fault := transfer.New(l.m.lifecycle.Context(), id, buf, done)
	op := &transferOp{Transfer: t, lane: l}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.running++
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
	}
	if err != nil || buf.Len() == 0 {
		op.CancelWait()
		l.m.completeAsync(op, err)
		return false
	}
	s.add(op)
	op.memoryReady = op.Ready()
	if !op.memoryReady {
		l.m.lifecycle.Go(func() { l.m.waitReady(s, op) })
	} else if s == &l.m.in {
		l.m.open()
	}
	return op.memoryReady
}

func (l *lane) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	for _, s := range []*direction{&l.m.out, &l.m.in} {
		if op := s.ops[transferKey{l.number, id}]; op != nil && l.m.cancel(s, op, cause) {
			l.m.completeAsync(op, cause)
		}
	}
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
