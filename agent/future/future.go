package future

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Future is a value that comes later, or the error that came instead. All
// methods may be called from any goroutine. The zero value is a pending future;
// a Future must not be copied.
type Future[T any] struct {
	isDone atomic.Bool // set behind the outcome, which never changes after

	// The outcome.
	value T
	err   error
	marks []mark // what the value waits for on devices

	onPanic  func(*PanicError) // these never change
	activity Activity

	mu        sync.Mutex // guards what follows, and completing
	done      chan struct{}
	watchers  []watcher
	callbacks []func() // to be run, in this order
	draining  bool     // a goroutine runs the callbacks
	recall    func(cause error)
	onCancel  func(cause error)
}

// watcher is told that a future is done, by the goroutine that completes it: it
// must neither block nor run code from outside of this package. What is built of
// several futures hears of them like that, and so is not held up by callbacks.
type watcher interface {
	completed(err error)
}

// New makes a pending future.
func New[T any]() *Future[T] { return &Future[T]{} }

// Of makes a future that has the value v.
func Of[T any](v T) *Future[T] {
	f := &Future[T]{value: v}
	f.isDone.Store(true)
	return f
}

// Failed makes a future that has failed. A nil error is [ErrNilError].
func Failed[T any](err error) *Future[T] {
	f := &Future[T]{}
	_ = f.Fail(err) // it is not done yet
	return f
}

// Set completes f with a value that is ready, or whose memory says itself on
// which stream it is. The error is [ErrDone].
func (f *Future[T]) Set(v T) error { return f.complete(v, nil, nil) }

// Fail completes f with an error, which Wait returns as it is. The error is
// [ErrDone]; without an error to fail with f fails with [ErrNilError], and so
// does Fail.
func (f *Future[T]) Fail(err error) error {
	var none T
	if err != nil {
		return f.complete(none, err, nil)
	}
	if f.complete(none, ErrNilError, nil) != nil {
		return ErrDone
	}
	return ErrNilError
}

// complete is the only way by which f becomes done.
func (f *Future[T]) complete(v T, err error, marks []mark) error {
	f.mu.Lock()
	if f.isDone.Load() {
		f.mu.Unlock()
		return ErrDone
	}
	if err == nil {
		f.value, f.marks = v, marks
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
		f.begin()
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

// Done returns a channel that is closed when f is done, the same one each time.
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

// Result returns the outcome of f without waiting, or [ErrPending]. Unlike Wait it
// orders no stream behind the work that makes the value: see Order.
func (f *Future[T]) Result() (T, error) {
	if !f.IsDone() {
		var none T
		return none, ErrPending
	}
	return f.value, f.err
}

// Err is nil if f has a value. Otherwise it is the error of f, or [ErrPending].
func (f *Future[T]) Err() error {
	if !f.IsDone() {
		return ErrPending
	}
	return f.err
}

// watch lets w know when f is done, at once if it is.
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

// unwatch takes back one call of watch. If f is becoming done, w may hear of it
// all the same.
func (f *Future[T]) unwatch(w watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.Index(f.watchers, w); i >= 0 {
		f.watchers = slices.Delete(f.watchers, i, i+1)
	}
}
