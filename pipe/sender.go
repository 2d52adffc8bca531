package pipe

import (
	"context"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/budget"
)

// sender is the state of sending that both dialects share: the budgets that admit messages, and the
// errors with which sending ends.
type sender struct {
	pipe   *Pipe
	budget writeBudget
	busy   func() bool   // reports whether messages are queued or being sent; called with mu held
	wake   chan struct{} // has a token when the run loop must check for something to send

	rejected chan struct{} // closed with rejection
	halted   chan struct{} // closed with stopped

	mu        sync.Mutex
	rejection error         // the error of new messages
	stopped   error         // the error of messages that have not completed
	flushed   chan struct{} // made by idle, closed when nothing is left to send

	traffic traffic
}

func (s *sender) init(p *Pipe) {
	s.pipe = p
	s.budget = writeBudget{pipe: p, own: budget.New(p.context.limits.PipeBytesInFlight), shared: p.context.inFlight}
	s.wake = make(chan struct{}, 1)
	s.rejected = make(chan struct{})
	s.halted = make(chan struct{})
}

// signal wakes the goroutine that sends queued messages, so that it checks the queue. It does not
// block. If the goroutine is busy, it checks once more before it waits.
func (s *sender) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// reject makes all further messages, and those that wait for the budgets, fail with err. Messages
// that are queued are still sent. A second call has no effect. It locks mu.
func (s *sender) reject(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rejectLocked(err)
}

func (s *sender) rejectLocked(err error) {
	if s.rejection == nil {
		s.rejection = err
		close(s.rejected)
	}
}

// halt makes err the error of the messages that have not completed and, unless reject was called
// before, of further ones. It makes the goroutine that sends messages end, and reports true. It
// does not end the operations of queued messages; its caller does. If halt was called before, it
// reports false and has no effect. The caller holds mu.
func (s *sender) halt(err error) bool {
	if s.stopped != nil {
		return false
	}
	s.rejectLocked(err)
	s.stopped = err
	close(s.halted)
	return true
}

// writeError returns the error of a message that was not sent because of err: the error with which
// all sending has ended, if it has, and otherwise err as an *Error of the pipe. It locks mu.
func (s *sender) writeError(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rejection != nil {
		return s.rejection
	}
	return s.pipe.errorFor("write", "", err)
}

// idle returns a channel that is closed once no message is queued or being sent. If that is so
// already, the channel is closed when idle returns. It locks mu.
func (s *sender) idle() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flushed == nil {
		s.flushed = make(chan struct{})
	}
	flushed := s.flushed
	s.signalIdle()
	return flushed
}

// signalIdle closes the channel that idle has returned, if no message is queued or being sent.
// Otherwise it does nothing. The caller holds mu.
func (s *sender) signalIdle() {
	if s.flushed != nil && !s.busy() {
		close(s.flushed)
		s.flushed = nil
	}
}

// WriteOp is a write that was started by WriteAsync.
type WriteOp struct {
	of     canceler
	sender *sender
	done   chan struct{}

	// Guarded by mu of the sender. number and err do not change once done is closed.
	err       error  // the first error of any part
	number    uint64 // of the message, from 0, once the write has started
	msg       *Message
	data      int         // bytes of payloads and tensors
	share     budgetShare // of the budgets
	state     opState
	pending   int32       // parts that are not complete
	report    func(error) // called with the result before done is closed; may be nil
	stopWatch func() bool // stops watching the context of WriteAsync and the message's deadline
}

// opState is the state of a write.
type opState uint8

const (
	opQueued  opState = iota // nothing was sent; the write can be withdrawn
	opStarted                // the message is being sent
	opDone                   // done is closed
)

// canceler implements the cancellation of a WriteOp in one dialect. cancelLocked makes the write,
// which is not done, end soon. It does not wait for the end. The caller holds mu of the sender.
type canceler interface{ cancelLocked(cause error) }

// init makes op an operation of s that is queued and not done. op.cancel calls the canceler of.
func (op *WriteOp) init(s *sender, of canceler) {
	op.sender, op.of, op.done = s, of, make(chan struct{})
}

// completedOp returns an operation that is done, with err as its result; nil means success.
func completedOp(err error) *WriteOp {
	op := &WriteOp{state: opDone, done: make(chan struct{}), err: err}
	close(op.done)
	return op
}

// Done returns a channel that is closed when the operation is done. The memory of the message may
// be reused from then on.
func (op *WriteOp) Done() <-chan struct{} { return op.done }

// Err returns the error of the operation. It returns nil if the operation has succeeded or is not
// done.
func (op *WriteOp) Err() error {
	if isClosed(op.done) {
		return op.err
	}
	return nil
}

// Wait blocks until the operation is done and returns its error, nil for success. If ctx ends
// first, it cancels the operation with the cause of ctx, as an end of the context of WriteAsync
// does, and still waits until the message's memory is no longer used. It may be called repeatedly
// and concurrently.
func (op *WriteOp) Wait(ctx context.Context) error {
	select {
	case <-op.done:
	case <-ctx.Done():
		op.cancel(context.Cause(ctx))
		<-op.done
	}
	return op.err
}

// cancel asks for an early end of the operation, with an error that wraps cause if the message is
// not sent as a whole. It does not wait for the end. If the operation is done, it does nothing. It
// locks mu of the sender.
func (op *WriteOp) cancel(cause error) {
	if isClosed(op.done) {
		return // it may have no sender
	}
	op.sender.mu.Lock()
	defer op.sender.mu.Unlock()
	if op.state != opDone {
		op.of.cancelLocked(cause)
	}
}

// watch arranges that the operation is cancelled, with the cause of ctx, if ctx ends before the
// operation is done. It does not block. It locks mu of the sender unless the operation is done or
// ctx cannot end.
func (op *WriteOp) watch(ctx context.Context) {
	if ctx.Done() == nil || isClosed(op.done) {
		return
	}
	op.sender.mu.Lock()
	defer op.sender.mu.Unlock()
	if op.state != opDone {
		stop := context.AfterFunc(ctx, func() { op.cancel(context.Cause(ctx)) })
		if stopTimer := op.stopWatch; stopTimer != nil {
			op.stopWatch = func() bool { stopTimer(); return stop() }
		} else {
			op.stopWatch = stop
		}
	}
}

// whenDone calls report with the operation's error when the operation is done, or at once if it is
// done already. report may be called with mu of the sender held, and must not block. whenDone may
// be called once.
func (op *WriteOp) whenDone(report func(error)) {
	if !isClosed(op.done) {
		op.sender.mu.Lock()
		defer op.sender.mu.Unlock()
		if op.state != opDone {
			op.report = report
			return
		}
	}
	report(op.err)
}

// expireAt starts a timer that cancels the operation at the time t, with context.DeadlineExceeded,
// if it is not done before. If t is zero it does nothing. It must be called before watch. The
// caller holds mu of the sender.
func (op *WriteOp) expireAt(t time.Time) {
	if !t.IsZero() {
		op.stopWatch = time.AfterFunc(time.Until(t), func() { op.cancel(context.DeadlineExceeded) }).Stop
	}
}

// complete ends the operation with the error in op.err: it stops watching the context and the
// deadline, releases the operation's share of the budgets, calls the function given to whenDone and
// closes the channel of Done. It is called once. The caller holds mu of the sender.
func (op *WriteOp) complete() {
	op.state = opDone
	if op.stopWatch != nil {
		op.stopWatch()
	}
	op.sender.budget.releaseShare(op.share)
	if op.report != nil {
		op.report(op.err)
	}
	close(op.done)
}

// writeBudget bounds the bytes of the messages that one pipe is writing, by the pipe's own budget
// and that of its context.
type writeBudget struct {
	pipe   *Pipe
	own    *budget.Budget
	shared *budget.Budget
}

// acquire acquires n bytes of the pipe's budget and the message's part of the context's budget, and
// reports true. It blocks until they are available. If ctx ends or stop is closed first, it
// acquires nothing and reports false. The caller must release the bytes when the message is sent.
func (r *writeBudget) acquire(ctx context.Context, stop <-chan struct{}, n int) bool {
	if !r.wait(ctx, stop, BudgetPipe, r.own, n) {
		return false
	}
	if !r.wait(ctx, stop, BudgetContext, r.shared, r.sharedCost(n)) {
		r.own.Release(n)
		return false
	}
	return true
}

// wait acquires n bytes of the budget b, and reports true. It blocks until they are available; a
// wait is reported to Events.WriterBlocked with the budget's name. If ctx ends or stop is closed
// first, it acquires nothing and reports false.
func (r *writeBudget) wait(ctx context.Context, stop <-chan struct{}, name WriteBudget, b *budget.Budget, n int) bool {
	if b.TryAcquire(n) {
		return true
	}
	if e := r.pipe.events; e != nil && e.WriterBlocked != nil {
		return r.pipe.waitReported(name, n, func() bool { return b.Acquire(ctx, stop, n) })
	}
	return b.Acquire(ctx, stop, n)
}

// tryAcquire acquires n bytes of the pipe's budget and the message's part of the context's budget,
// and reports true, if both are available now. Otherwise it acquires nothing and reports false. The
// caller must release the bytes when the message is sent.
func (r *writeBudget) tryAcquire(n int) bool {
	if !r.own.TryAcquire(n) {
		return false
	}
	if !r.shared.TryAcquire(r.sharedCost(n)) {
		r.own.Release(n)
		return false
	}
	return true
}

func (r *writeBudget) release(n int) { r.releaseShare(r.shareOf(n)) }

// budgetShare is what one or more messages, or a part of a message, have acquired of a pipe's
// budget (own) and of its context's (shared), in bytes.
type budgetShare struct{ own, shared int }

// shareOf returns how many bytes acquire takes of each budget for a message of n bytes. It acquires
// nothing.
func (r *writeBudget) shareOf(n int) budgetShare { return budgetShare{n, r.sharedCost(n)} }

func (r *writeBudget) releaseShare(s budgetShare) {
	if s == (budgetShare{}) {
		return
	}
	r.shared.Release(s.shared)
	r.own.Release(s.own)
}

func (s *budgetShare) add(other budgetShare) {
	s.own += other.own
	s.shared += other.shared
}

// split divides s in two: taken has at most n bytes of each budget, and remaining has the other
// bytes.
func (s budgetShare) split(n int) (taken, remaining budgetShare) {
	taken = budgetShare{min(n, s.own), min(n, s.shared)}
	return taken, budgetShare{s.own - taken.own, s.shared - taken.shared}
}

// sharedCost returns how many bytes a message of n bytes acquires of the context's budget: at most
// half of it. A message that needs the whole budget has to wait until no pipe has bytes in flight,
// and meanwhile blocks the writers of all pipes.
func (r *writeBudget) sharedCost(n int) int { return min(n, r.shared.Size()/2) }
