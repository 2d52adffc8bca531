package future

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// All returns a future of a list of futures. It is done when all of them are, and its
// value is the list. If any has failed it fails with the first error in the order of the
// list, but not before all are done. PyTorch's collect_all differs: it fails at once for
// some errors and delays others until the values are read. To stop at the first error use
// [WaitAll].
//
// Waiting for the result makes the streams of the context wait for all values. The result
// for an empty list is done; for a list with nil it has failed with [ErrNilFuture].
func All[T any](fs ...*Future[T]) *Future[[]*Future[T]] {
	if slices.Contains(fs, nil) {
		return Failed[[]*Future[T]](ErrNilFuture)
	}
	c := &collector[T]{fs: slices.Clone(fs), out: &Future[[]*Future[T]]{}}
	if len(fs) > 0 {
		c.out.onPanic, c.out.activity = fs[0].onPanic, fs[0].activity
	}
	c.remaining.Store(int64(len(fs)) + 1) // one more, so that it is not done before all are watched
	for _, f := range c.fs {
		f.watch(c)
	}
	c.completed(nil)
	return c.out
}

// collector completes the result of All when the last future is done.
type collector[T any] struct {
	fs        []*Future[T]
	remaining atomic.Int64
	out       *Future[[]*Future[T]]
}

// completed implements watcher.
func (c *collector[T]) completed(error) {
	if c.remaining.Add(-1) > 0 {
		return
	}
	var err error
	var events []readyEvent
	for _, f := range c.fs {
		if err == nil {
			err = f.err
		}
		events = append(events, f.events...)
	}
	_ = c.out.complete(c.fs, err, events) // has no effect if it was cancelled
}

// WaitAll waits for all futures and returns their values in the order of the list. If one fails
// it returns that error at once and cancels nothing; if several have failed before, it returns
// the first error of the list. As Wait does, it returns the error of ctx if ctx ends before, and
// makes the streams of ctx wait for all values. The error is [ErrNilFuture] if the list contains
// nil.
func WaitAll[T any](ctx context.Context, fs ...*Future[T]) ([]T, error) {
	all := make([]Any, len(fs))
	for i, f := range fs {
		all[i] = f
	}
	if err := Await(ctx, all...); err != nil {
		return nil, err
	}
	values := make([]T, len(fs))
	for i, f := range fs {
		values[i] = f.value
	}
	return values, nil
}

// Any is a [Future] of any type, for code that waits for futures without using their
// values. No other type implements it.
type Any interface {
	Done() <-chan struct{}
	IsDone() bool
	Err() error
	Cancel(cause error) bool

	watch(watcher)
	unwatch(watcher)
	order(context.Context) error
	isNil() bool
	onValue(func(ptr any, err error))
}

// isNil implements Any.
func (f *Future[T]) isNil() bool { return f == nil }

// Await blocks until all futures have values and returns nil, or returns the error of the
// first one that fails, or that of ctx if it ends before. As Wait does, it makes the
// streams of ctx wait for all values. It cancels nothing. The error is [ErrNilFuture] if
// the list contains nil.
func Await(ctx context.Context, fs ...Any) error {
	if err := checkNotNil(fs); err != nil {
		return err
	}
	c := &completionCounter{done: make(chan struct{})}
	c.remaining.Store(int64(len(fs)) + 1) // one more, so that it is not done before all are watched
	for _, f := range fs {
		f.watch(c)
	}
	c.completed(nil)
	err := waitDone(ctx, c.done)
	if err == nil {
		err = c.err
	}
	if err != nil {
		for _, f := range fs { // those that may stay pending for long must not keep c
			f.unwatch(c)
		}
		return err
	}
	return orderAll(ctx, fs)
}

// completionCounter watches the futures of Await: it closes done when all of them have values or
// one has failed.
type completionCounter struct {
	remaining atomic.Int64
	once      sync.Once
	err       error // set before done is closed
	done      chan struct{}
}

// completed implements watcher.
func (c *completionCounter) completed(err error) {
	if err != nil || c.remaining.Add(-1) == 0 {
		c.once.Do(func() {
			c.err = err
			close(c.done)
		})
	}
}

// Settle blocks until all futures are done, failed ones included, and returns the first error in
// the order of the list. It returns the error of ctx if ctx ends before. Like [Await] it makes
// the streams of ctx wait for all values, cancels nothing, and returns [ErrNilFuture] if the list
// contains nil.
func Settle(ctx context.Context, fs ...Any) error {
	if err := checkNotNil(fs); err != nil {
		return err
	}
	for _, f := range fs {
		if err := waitDone(ctx, f.Done()); err != nil {
			return err
		}
	}
	for _, f := range fs {
		if err := f.Err(); err != nil {
			return err
		}
	}
	return orderAll(ctx, fs)
}

// checkNotNil returns ErrNilFuture if the list contains nil, and nil otherwise.
func checkNotNil(fs []Any) error {
	for _, f := range fs {
		if f == nil || f.isNil() {
			return ErrNilFuture
		}
	}
	return nil
}

// orderAll makes the streams of ctx wait for the values of all futures, which must be done. The
// error is a *StreamError.
func orderAll(ctx context.Context, fs []Any) error {
	for _, f := range fs {
		if err := f.order(ctx); err != nil {
			return err
		}
	}
	return nil
}

// OnValue runs fn once f is done, as a callback of OnDone is run. fn receives a pointer to a copy
// of the value, a *T for a Future[T], and the error, nil if f has a value. OnValue is for code
// that does not know T. Its error is [ErrNilCallback] or [ErrNilFuture].
func OnValue(f Any, fn func(ptr any, err error)) error {
	switch {
	case f == nil || f.isNil():
		return ErrNilFuture
	case fn == nil:
		return ErrNilCallback
	}
	f.onValue(fn)
	return nil
}

// onValue implements Any.
func (f *Future[T]) onValue(fn func(ptr any, err error)) {
	f.enqueue(func() {
		value := f.value
		fn(&value, f.err)
	})
}
