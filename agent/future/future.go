package future

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
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

	mu        sync.Mutex // guards the fields below, and completion
	done      chan struct{}
	watchers  []watcher
	callbacks []func() // to be run, in this order
	draining  bool     // a goroutine is running the callbacks
	recall    func(cause error)
	onCancel  func(cause error)
}

// watcher is called by the goroutine that completes a future. It must not block or run code
// of the application. Futures made of several others use it, so that callbacks do not delay
// them.
type watcher interface {
	completed(err error)
}

// New returns a pending future.
func New[T any]() *Future[T] { return &Future[T]{} }

// Of returns a future with the value v.
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

// Set completes f with a value that is ready, or whose buffers carry the stream on which they are
// valid. It returns [ErrDone], and changes nothing, if f is done already.
func (f *Future[T]) Set(v T) error { return f.complete(v, nil, nil) }

// Fail completes f with err, which Wait then returns unchanged. It returns [ErrDone], and changes
// nothing, if f is done already. If err is nil, f fails with [ErrNilError], which Fail returns
// too.
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

// complete completes f with a value and its events, or with err if that is not nil, calls the
// watchers and starts a goroutine for the callbacks. It returns ErrDone, and changes nothing, if
// f is done already. The caller must not hold f.mu.
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
	f.watchers, f.recall, f.onCancel = nil, nil, nil
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

// IsDone reports whether f has been completed.
func (f *Future[T]) IsDone() bool { return f.isDone.Load() }

// Done returns a channel that is closed when f is done. It is the same for each call.
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

// Result returns the value or the error of f without waiting. If f is not done, the error is
// [ErrPending]. Unlike Wait it makes no stream wait for the work that computes the value; see
// Order.
func (f *Future[T]) Result() (T, error) {
	if !f.IsDone() {
		var zero T
		return zero, ErrPending
	}
	return f.value, f.err
}

// Err returns nil if f has a value, its error if it failed, or [ErrPending].
func (f *Future[T]) Err() error {
	if !f.IsDone() {
		return ErrPending
	}
	return f.err
}

// watch calls w.completed with the error of f when f is done: on the goroutine that completes f,
// or before watch returns if f is done already.
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

// unwatch reverts one call of watch with w. w may still be called if f is being completed
// concurrently.
func (f *Future[T]) unwatch(w watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.Index(f.watchers, w); i >= 0 {
		f.watchers = slices.Delete(f.watchers, i, i+1)
	}
}

// Wait blocks until f is done and returns its value or its error. If ctx ends before, it
// returns the error of ctx; f does not change. If f is done, the state of ctx does not matter.
//
// The value may be computed by work that is only enqueued on devices, see SetOn. Wait makes
// the streams of ctx (device.WithStream) wait for that work, each for the work of its device;
// the host does not wait. For a device without a stream in ctx, use the value on the stream of
// its buffer, or call Order. After a [*StreamError], which reports that a stream could not
// wait, Wait may be called with another stream.
func (f *Future[T]) Wait(ctx context.Context) (T, error) {
	var zero T
	if !f.IsDone() {
		if err := waitDone(ctx, f.Done()); err != nil {
			return zero, err
		}
	}
	if err := f.order(ctx); err != nil {
		return zero, err
	}
	return f.value, f.err
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

// waitDone blocks until done is closed and returns nil. If ctx ends before, it returns the error
// of ctx. It notifies the Waiter of ctx if it blocks.
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
		return ctx.Err()
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

	// Activity is notified of goroutines that run callbacks, of this future and of those
	// derived from it by Then and other functions.
	Activity Activity
}

// Activity lets an application wait until no callback is running.
type Activity interface {
	// Begin is called before a goroutine that runs callbacks starts, and before the call
	// returns that completed the future or added a callback to a completed one.
	Begin()

	// End is called when that goroutine has run all callbacks.
	End()
}

// NewWith returns a pending future with options.
func NewWith[T any](o Options) *Future[T] {
	return &Future[T]{recall: o.Recall, onCancel: o.OnCancel, onPanic: o.OnPanic, activity: o.Activity}
}

// Cancel makes a pending future fail, calls Options.OnCancel and returns true. The error of the
// future is a [*CancelError], which matches [ErrCancelled] and cause, or ErrCancelled if cause is
// nil. Before the future fails, Cancel runs Options.Recall. A future that is done does not change,
// and Cancel returns false.
//
// Cancel does not affect the futures from which f was derived. Those derived from f see it fail.
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
