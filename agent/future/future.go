package future

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
)

// Future is a value, or an error, that becomes available later. All methods may be called
// concurrently. The zero value is a pending future. A Future must not be copied.
type Future[T any] struct {
	isDone atomic.Bool // set after the outcome, which does not change afterwards

	// The outcome.
	value  T
	err    error
	events []readyEvent // of the work on devices that computes the value

	onPanic  func(*PanicError) // immutable
	activity Activity          // immutable
	devices  *Devices          // immutable

	mu        sync.Mutex // guards the fields below, and completion
	done      chan struct{}
	watchers  []watcher
	callbacks []func() // to be run, in this order
	draining  bool     // a goroutine is running the callbacks
	recall    func(cause error)
	onCancel  func(cause error)
	attender  Attender
}

// watcher is called by the goroutine that completes a future. It must not block or run code
// of the application. Futures made of several others use it, so that callbacks do not delay
// them.
type watcher interface {
	completed(err error)
}

// New returns a pending future.
func New[T any]() *Future[T] { return &Future[T]{} }

// Of returns a future that is done, with the value v.
func Of[T any](v T) *Future[T] {
	f := &Future[T]{value: v}
	f.isDone.Store(true)
	return f
}

// Failed returns a future that has failed with err, or with [ErrNilError] if err is nil.
func Failed[T any](err error) *Future[T] {
	f := &Future[T]{}
	_ = f.Fail(err) // f is pending
	return f
}

// Set completes f with the value v: goroutines that wait for f resume, and callbacks start. No
// stream of a device is made to wait. So memory in v must be valid already, or v must carry, as a
// device.Buffer does, the stream on which it is valid; otherwise use [Future.SetOn]. f keeps v. Set
// returns nil, or [ErrDone] if f was done before; then f does not change.
func (f *Future[T]) Set(v T) error { return f.complete(v, nil, nil) }

// Fail completes f with err, which Wait then returns unchanged, and returns nil. If f was done
// before, f does not change and Fail returns [ErrDone]. Otherwise, if err is nil, f fails with
// [ErrNilError], and Fail returns ErrNilError.
func (f *Future[T]) Fail(err error) error {
	var zero T
	if err != nil {
		return f.complete(zero, err, nil)
	}
	if f.complete(zero, ErrNilError, nil) != nil {
		return ErrDone
	}
	return ErrNilError
}

// complete completes f with the value v and the events after which v is valid, or, if err is not
// nil, with err alone. f keeps v and events. complete closes the channel of Done, releases the
// functions Recall and OnCancel, calls the watchers, starts a goroutine for the callbacks if there
// are any, and returns nil. If f was done before, f does not change and complete returns ErrDone.
// The caller must not hold f.mu.
func (f *Future[T]) complete(v T, err error, events []readyEvent) error {
	f.mu.Lock()
	if f.isDone.Load() {
		f.mu.Unlock()
		return ErrDone
	}
	if err == nil {
		f.value, f.events = v, events
	}
	f.err = err
	f.isDone.Store(true)
	if f.done != nil {
		close(f.done)
	}
	watchers := f.watchers
	f.watchers, f.recall, f.onCancel, f.attender = nil, nil, nil, nil
	start := len(f.callbacks) > 0
	f.draining = start
	f.mu.Unlock()
	if start {
		f.beginActivity()
	}

	for _, w := range watchers {
		w.completed(err)
	}
	if start {
		go f.drain()
	}
	return nil
}

// IsDone reports whether f has been completed with a value or with an error.
func (f *Future[T]) IsDone() bool { return f.isDone.Load() }

// Done returns a channel that is closed when f is done. All calls return the same channel.
func (f *Future[T]) Done() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done == nil {
		f.done = make(chan struct{})
		if f.isDone.Load() {
			close(f.done)
		}
	}
	return f.done
}

// Result returns the value of f and nil, or the zero value and the error with which f failed. It
// does not block: if f is not done, the error is [ErrPending]. Result makes no stream of a device
// wait for the work that computes the value; Wait and Order do.
func (f *Future[T]) Result() (T, error) {
	if !f.IsDone() {
		var zero T
		return zero, ErrPending
	}
	return f.value, f.err
}

// Err returns nil if f has a value, the error of f if f has failed, and [ErrPending] if f is not
// done.
func (f *Future[T]) Err() error {
	if !f.IsDone() {
		return ErrPending
	}
	return f.err
}

// watch registers w, so that the goroutine that completes f calls w.completed with the error of f,
// nil if f has a value. f keeps w until then or until unwatch. If f is done already, watch calls
// w.completed itself and does not register w. The caller must not hold f.mu.
func (f *Future[T]) watch(w watcher) {
	f.mu.Lock()
	pending := !f.isDone.Load()
	if pending {
		f.watchers = append(f.watchers, w)
	}
	f.mu.Unlock()
	if !pending {
		w.completed(f.err)
	}
}

// unwatch removes one registration of w by watch, if f has one. w.completed may still be called
// after unwatch if another goroutine is completing f. The caller must not hold f.mu.
func (f *Future[T]) unwatch(w watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.Index(f.watchers, w); i >= 0 {
		f.watchers = slices.Delete(f.watchers, i, i+1)
	}
}

// Wait blocks until f is done. It returns the value and nil, or the zero value and the error with
// which f failed. If ctx ends while f is pending, Wait returns the zero value and an error that
// matches ctx.Err(), and ErrTimeout after a deadline, and f stays pending. If f is done, Wait does
// not check whether ctx has ended. With Options.Attender the goroutine may do work while it waits: that of a
// call reads messages of the worker, and runs short functions and interceptors as a blocking call does.
//
// The value may be computed by work that is only enqueued on devices, see SetOn. The host does not
// wait for that work. Instead, Wait makes the stream that ctx has for each of these devices
// (device.WithStream) wait for the work on that device. If ctx has no stream for a device, use the
// value on the stream of its buffer, or call Order. If a stream cannot wait, Wait returns the zero
// value and a [*StreamError]; it may then be called with a context that has another stream.
func (f *Future[T]) Wait(ctx context.Context) (T, error) {
	var zero T
	if err := f.await(ctx); err != nil {
		return zero, err
	}
	if err := f.order(ctx); err != nil {
		return zero, err
	}
	return f.value, f.err
}

// await blocks until f is done. The error is that of waitDone.
func (f *Future[T]) await(ctx context.Context) error {
	if f.IsDone() {
		return nil
	}
	f.mu.Lock()
	attender := f.attender
	f.mu.Unlock()
	if attender != nil && ctx.Err() == nil {
		attender.Attend(ctx, f.Done())
	}
	return waitDone(ctx, f.Done())
}

// Waiter is notified when a goroutine waits for a future with a context whose value for
// [WaiterKey] is the Waiter. It can release the slot of a handler for the time of the wait, for
// example.
type Waiter interface {
	// BeginWait is called by a goroutine that is about to wait. The goroutine calls the
	// result when it stops waiting.
	BeginWait() (end func())
}

// WaiterKey is the key of a Waiter in a context.
type WaiterKey struct{}

// waitDone blocks until done is closed and returns nil. If ctx ends and done is not closed, it
// returns the error of ctx, which matches ErrTimeout too after a deadline. If it has to block and
// ctx holds a Waiter under WaiterKey, it calls BeginWait of the Waiter before and the function that
// BeginWait returned after.
func waitDone(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	default:
	}
	if ctx.Err() == nil {
		if w, ok := ctx.Value(WaiterKey{}).(Waiter); ok {
			defer w.BeginWait()()
		}
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	select {
	case <-done:
		return nil // even if ctx has ended too
	default:
		return ctxerr.Wrap(ctx.Err())
	}
}

// Options configures a future that its producer completes later. All are optional.
type Options struct {
	// Recall revokes access to memory that must not be used after the future is done, for
	// example memory that is still being sent. Cancel calls it before the future fails. It
	// must return soon, once the memory is no longer in use. It may be called concurrently, and
	// the future may be completed meanwhile. The cause is never nil.
	Recall func(cause error)

	// OnCancel is called by Cancel once the future is cancelled, at most once, so that the
	// producer can stop its work. It must not block. The cause is never nil.
	OnCancel func(cause error)

	// OnPanic is called for each panic in Recall, in OnCancel and in callbacks, of this
	// future and of those derived from it by Then and other functions. It may be called
	// concurrently. By default panics are logged to slog.Default().
	OnPanic func(*PanicError)

	// Attender, if it is set, works for goroutines that wait for the future.
	Attender Attender

	// Activity is notified of goroutines that run callbacks, of this future and of those
	// derived from it by Then and other functions.
	Activity Activity

	// Devices is where the tensors of the value may be, for SetFrom and ThenOn.
	Devices *Devices
}

// Attender does work that may complete a future.
type Attender interface {
	// Attend is called by Wait before it blocks, on the same goroutine, with its context and the
	// channel of Done. It may return at any time. If it blocks, it must notify the Waiter of the
	// context itself. Settle calls it too.
	Attend(ctx context.Context, done <-chan struct{})
}

// Activity lets an application wait until no callback is running.
type Activity interface {
	// Begin is called before a goroutine that runs callbacks starts, and before the call
	// returns that completed the future or added a callback to a completed one.
	Begin()

	// End is called when that goroutine has run all callbacks.
	End()
}

// NewWith returns a pending future with the options o. The future keeps o.Recall and o.OnCancel
// until it is done.
func NewWith[T any](o Options) *Future[T] {
	return &Future[T]{recall: o.Recall, onCancel: o.OnCancel, onPanic: o.OnPanic, activity: o.Activity, attender: o.Attender, devices: o.Devices}
}

// Cancel makes a pending future fail and returns true. The error of f is then a [*CancelError],
// which matches both [ErrCancelled] and cause, or just ErrCancelled if cause is nil. If f is done
// already, f does not change and Cancel returns false.
//
// If the options are set, Cancel runs Options.Recall before f fails and Options.OnCancel after it,
// and blocks until they return; the panic of either is passed to Options.OnPanic. If f is completed
// while Recall runs, Cancel returns false and does not call OnCancel.
//
// The futures from which f was derived by Then, All or Flatten are not cancelled. For the futures
// that were derived from f, the effect is that of any other failure of f.
func (f *Future[T]) Cancel(cause error) bool {
	err := ErrCancelled
	if cause != nil {
		err = &CancelError{Cause: cause}
	} else {
		cause = err
	}
	if f.activity != nil { // covers the time from Recall to the callbacks
		f.activity.Begin()
		defer f.activity.End()
	}
	f.mu.Lock()
	recall, onCancel := f.recall, f.onCancel // complete clears the fields
	f.mu.Unlock()
	if recall != nil {
		f.runProtected(func() { recall(cause) })
	}
	var zero T
	if f.complete(zero, err, nil) != nil {
		return false
	}
	if onCancel != nil {
		f.runProtected(func() { onCancel(cause) })
	}
	return true
}
