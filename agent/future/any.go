package future

import (
	"context"
	"sync"
	"sync/atomic"
)

// Any is a [Future] of any type; nothing else implements it. It is for who waits
// for futures without looking at their values.
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

func (f *Future[T]) isNil() bool { return f == nil }

// Await waits until all futures have values and returns nil, or until the first
// fails and returns its error, or the error of ctx if that ends before. It makes
// the streams of ctx wait for all values as Wait does. It cancels nothing. nil in
// the list is [ErrNilFuture].
func Await(ctx context.Context, fs ...Any) error {
	if err := present(fs); err != nil {
		return err
	}
	v := &vigil{over: make(chan struct{})}
	v.left.Store(int64(len(fs)) + 1) // one more, until all are watched
	for _, f := range fs {
		f.watch(v)
	}
	v.completed(nil)
	err := until(ctx, v.over)
	if err == nil {
		err = v.err
	}
	if err != nil {
		dismiss(v, fs)
		return err
	}
	return orderAll(ctx, fs)
}

// vigil is over when all futures have values, or one has failed.
type vigil struct {
	left atomic.Int64
	once sync.Once
	err  error // set before over is closed
	over chan struct{}
}

func (v *vigil) completed(err error) {
	if err != nil || v.left.Add(-1) == 0 {
		v.once.Do(func() {
			v.err = err
			close(v.over)
		})
	}
}

// dismiss leaves nothing behind in futures that may stay pending for long.
func dismiss(w watcher, fs []Any) {
	for _, f := range fs {
		f.unwatch(w)
	}
}

// Settle waits until all futures are done, whatever became of them, and returns
// the first error in the order of the list. Otherwise it is like [Await].
func Settle(ctx context.Context, fs ...Any) error {
	if err := present(fs); err != nil {
		return err
	}
	for _, f := range fs {
		if err := until(ctx, f.Done()); err != nil {
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

func present(fs []Any) error {
	for _, f := range fs {
		if f == nil || f.isNil() {
			return ErrNilFuture
		}
	}
	return nil
}

func orderAll(ctx context.Context, fs []Any) error {
	for _, f := range fs {
		if err := f.order(ctx); err != nil {
			return err
		}
	}
	return nil
}
