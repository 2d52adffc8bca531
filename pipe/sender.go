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

// signal makes the run loop check for something to send. It does not block.
func (s *sender) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// reject makes all further messages, and those that wait for the budgets, fail with err. Only the
// first call has an effect.
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

// halt makes err the error of further messages and of those that have not completed, and makes the
// run loop end. It reports false, without effect, if the sender is stopped already. The caller
// holds mu.
func (s *sender) halt(err error) bool {
	if s.stopped != nil {
		return false
	}
	s.rejectLocked(err)
	s.stopped = err
	close(s.halted)
	return true
}

// writeError returns the error of a message that was not sent because of err. It is the error with
// which sending has ended, if it has, and otherwise err as an *Error. writeError locks mu.
func (s *sender) writeError(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rejection != nil {
		return s.rejection
	}
	return s.pipe.errorFor("write", "", err)
}

// idle returns a channel that is closed when nothing is left to send, which may be the case
// already.
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

// signalIdle closes flushed if nothing is left to send. The caller holds mu.
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

// init makes op a queued write of s. of implements its cancellation.
func (op *WriteOp) init(s *sender, of canceler) {
	op.sender, op.of, op.done = s, of, make(chan struct{})
}

// completedOp returns an operation that is done, with err as its result; nil means success.
func completedOp(err error) *WriteOp {
	op := &WriteOp{state: opDone, done: make(chan struct{}), err: err}
	close(op.done)
	return op
}

// Done returns a channel that is closed when the operation is done.
func (op *WriteOp) Done() <-chan struct{} { return op.done }

// Err returns the result of the operation, and nil until it is done.
func (op *WriteOp) Err() error {
	if isClosed(op.done) {
		return op.err
	}
	return nil
}

// Wait waits until the operation is done and returns its result. If ctx ends first it cancels the
// operation, as the ctx of WriteAsync does, and still waits until the message's memory is no longer
// used.
func (op *WriteOp) Wait(ctx context.Context) error {
	select {
	case <-op.done:
	case <-ctx.Done():
		op.cancel(context.Cause(ctx))
		<-op.done
	}
	return op.err
}

// cancel makes the operation end soon, or leaves it alone if it is done. It does not wait for the
// end.
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

// watch registers with ctx that the operation is cancelled if ctx ends before it is done. It does not
// block.
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

// whenDone makes the operation call report with its result when it is done, and calls report itself if
// it is done already. whenDone may be called once.
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

// expireAt starts a timer that cancels the operation at t if it is not done by then. A zero t does
// nothing. expireAt is called before watch. The caller holds mu of the sender.
func (op *WriteOp) expireAt(t time.Time) {
	if !t.IsZero() {
		op.stopWatch = time.AfterFunc(time.Until(t), func() { op.cancel(context.DeadlineExceeded) }).Stop
	}
}

// complete ends the operation with the result in err: it stops watching its context and deadline,
// releases its share of the budgets and closes done. It is called once. The caller holds mu of the
// sender.
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

// acquire acquires n bytes, which the caller must release. It blocks until they are available, and
// reports false, with nothing acquired, if ctx ends or stop is closed first.
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

// wait acquires n bytes of b, as Budget.Acquire does, and reports whether it has. name is the name of
// b. If it has to wait, it reports that to Events.WriterBlocked.
func (r *writeBudget) wait(ctx context.Context, stop <-chan struct{}, name WriteBudget, b *budget.Budget, n int) bool {
	if b.TryAcquire(n) {
		return true
	}
	if e := r.pipe.events; e != nil && e.WriterBlocked != nil {
		return r.pipe.waitReported(name, n, func() bool { return b.Acquire(ctx, stop, n) })
	}
	return b.Acquire(ctx, stop, n)
}

// tryAcquire acquires n bytes, which the caller must release, if they are available now. Otherwise
// it reports false and acquires nothing.
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

// shareOf returns the share that acquire takes for a message of n bytes. It acquires nothing.
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

// split divides s into a share of at most n bytes of each budget and the rest.
func (s budgetShare) split(n int) (taken, remaining budgetShare) {
	taken = budgetShare{min(n, s.own), min(n, s.shared)}
	return taken, budgetShare{s.own - taken.own, s.shared - taken.shared}
}

// sharedCost returns how many bytes a message of n bytes acquires of the context's budget: at most
// half of it. A message that had to wait for the whole budget could be held up by one pipe whose
// peer does not read, and would hold up all others.
func (r *writeBudget) sharedCost(n int) int { return min(n, r.shared.Size()/2) }
