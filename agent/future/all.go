package future

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// All returns a future that completes once every future of fs has completed. Its value is a copy of
// the list fs, which holds the same futures. If futures of fs have failed, the result fails with
// the error of the one that comes first in fs; it fails only once all are done. PyTorch's
// collect_all differs: it fails at once for some errors and delays others until the values are
// read. To stop at the first error use [WaitAll].
//
// If fs is empty, the result is done already and its value is an empty list. If fs contains nil,
// the result has failed already, with [ErrNilFuture].
//
// A wait for the result with a context makes the streams of that context (device.WithStream) wait
// for the work that computes the values of fs. Panics in callbacks of the result are passed to
// Options.OnPanic of the first future of fs, and Options.Activity is also that of the first. Options.Devices has the
// devices of all.
func All[T any](fs ...*Future[T]) *Future[[]*Future[T]] {
	if slices.Contains(fs, nil) {
		return Failed[[]*Future[T]](ErrNilFuture)
	}
	c := &collector[T]{fs: slices.Clone(fs), out: &Future[[]*Future[T]]{}}
	if len(fs) > 0 {
		c.out.onPanic, c.out.activity, c.out.devices = fs[0].onPanic, fs[0].activity, union(fs)
	}
	c.remaining.Store(int64(len(fs)) + 1) // one more, so that it is not done before all are watched
	for _, f := range c.fs {
		f.watch(c)
	}
	c.completed(nil)
	return c.out
}

// union returns the Devices of the first future that has some, with the devices of all.
func union[T any](fs []*Future[T]) *Devices {
	var all *Devices
	for _, f := range fs {
		switch {
		case f.devices == nil || f.devices == all:
		case all == nil:
			all = f.devices
		default:
			merged := *all
			merged.list = slices.Clone(all.list)
			for _, on := range f.devices.list {
				if !slices.Contains(merged.list, on) {
					merged.list = append(merged.list, on)
				}
			}
			all = &merged
		}
	}
	return all
}

// collector completes the result of All when the last future is done.
type collector[T any] struct {
	fs        []*Future[T]
	remaining atomic.Int64
	out       *Future[[]*Future[T]]
}

// completed records that one more of the futures of c.fs is done. When all are, it completes c.out
// with the list, or with the first error in the order of the list. It ignores its argument, the
// error of the one future.
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

// WaitAll blocks until all futures of fs have values, and returns the values in the order of fs. As
// soon as one fails, WaitAll returns nil and the error of that future; if several had failed before
// the call, the error of the first of them in fs. It cancels no future. If ctx ends while futures
// are pending and none has failed, WaitAll returns an error that matches ctx.Err(), and ErrTimeout
// after a deadline. If fs contains nil, it returns [ErrNilFuture] without waiting.
//
// Like Wait, WaitAll makes the streams of ctx wait for the work that computes the values; if a
// stream cannot, the error is a [*StreamError].
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
	await(ctx context.Context) error
	isNil() bool
	onValue(func(ptr any, err error))
}

// isNil reports whether f is a nil pointer.
func (f *Future[T]) isNil() bool { return f == nil }

// Await blocks until all futures of fs have values, and returns nil. As soon as one fails, Await
// returns the error of that future; if several had failed before the call, the error of the first
// of them in fs. It cancels no future. If ctx ends while futures are pending and none has failed,
// Await returns an error that matches ctx.Err(), and ErrTimeout after a deadline. If fs contains
// nil, it returns [ErrNilFuture] without waiting.
//
// Like Wait, Await makes the streams of ctx wait for the work that computes the values; if a stream
// cannot, the error is a [*StreamError].
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

// completed records that a watched future is done: with a value if err is nil, otherwise with the
// error err. It closes c.done, and stores err in c.err, at the first error or when all futures have
// values.
func (c *completionCounter) completed(err error) {
	if err != nil || c.remaining.Add(-1) == 0 {
		c.once.Do(func() {
			c.err = err
			close(c.done)
		})
	}
}

// Settle blocks until all futures of fs are done, with a value or an error, and returns the first
// error in the order of fs, or nil if all have values. It cancels no future. If ctx ends while a
// future is pending, Settle returns an error that matches ctx.Err(), and ErrTimeout after a
// deadline. If fs contains nil, it returns [ErrNilFuture] without waiting.
//
// If all have values, Settle makes the streams of ctx wait for the work that computes them, as Wait
// does; if a stream cannot, the error is a [*StreamError].
func Settle(ctx context.Context, fs ...Any) error {
	if err := checkNotNil(fs); err != nil {
		return err
	}
	for _, f := range fs {
		if err := f.await(ctx); err != nil {
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

// checkNotNil returns ErrNilFuture if fs contains nil or a nil *Future, and nil otherwise.
func checkNotNil(fs []Any) error {
	for _, f := range fs {
		if f == nil || f.isNil() {
			return ErrNilFuture
		}
	}
	return nil
}

// orderAll makes the streams of ctx wait for the work that computes the values of all futures of
// fs, which must be done. It does not block. If a stream cannot wait, orderAll stops there and
// returns a *StreamError; otherwise it returns nil.
func orderAll(ctx context.Context, fs []Any) error {
	for _, f := range fs {
		if err := f.order(ctx); err != nil {
			return err
		}
	}
	return nil
}

// OnValue makes f call fn once f is done, for code that does not know the type T of the value. fn
// receives a pointer to a new copy of the value (a *T if f is a Future[T]), which fn may keep, and
// the error of f. If f has failed, the copy is the zero value; if f has a value, err is nil.
//
// fn is a callback like those of [Future.OnDone]: it runs on another goroutine, in the order in
// which the callbacks of f were added. OnValue returns at once: nil, [ErrNilFuture] if f is nil, or
// [ErrNilCallback] if fn is nil.
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

// onValue adds a callback to f that calls fn with a pointer to a new copy of the value and with the
// error of f. fn must not be nil.
func (f *Future[T]) onValue(fn func(ptr any, err error)) {
	f.enqueue(func() {
		value := f.value
		fn(&value, f.err)
	})
}
