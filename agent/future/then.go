package future

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Then makes a future of what fn returns: its value, or its error or panic (a
// [*PanicError]). fn runs once, when f is done, also if f has failed: it gets f,
// and Result tells. It runs as the functions given to OnDone do.
//
// If fn enqueues work on devices, name the streams: before fn runs each waits for
// the work that makes the value of f, and the result waits for what they hold when
// fn returns. If that fails, the result fails with a [*StreamError]; fn does not
// run where the bytes would be wrong. On all other devices the result waits for
// what f waits for, so that fn may hand values on.
//
// Without f or fn the result has failed, with [ErrNilFuture] or [ErrNilCallback].
func Then[T, U any](f *Future[T], fn func(*Future[T]) (U, error), streams ...device.Stream) *Future[U] {
	switch {
	case f == nil:
		return Failed[U](ErrNilFuture)
	case fn == nil:
		return Failed[U](ErrNilCallback)
	}
	out := &Future[U]{onPanic: f.onPanic, activity: f.activity}
	f.enqueue(func() { derive(f, out, fn, streams) })
	return out
}

// outcome is what completes a future.
type outcome[T any] struct {
	value T
	err   error
	marks []mark
}

// derive completes out with what fn makes of f, however fn ends.
func derive[T, U any](f *Future[T], out *Future[U], fn func(*Future[T]) (U, error), streams []device.Stream) {
	r := outcome[U]{err: ErrGoexit}
	defer func() {
		if p := recover(); p != nil {
			r.err = caught(p)
		}
		_ = out.complete(r.value, r.err, r.marks) // unless somebody else did: cancelled, say
	}()
	r = apply(f, fn, streams)
}

func apply[T, U any](f *Future[T], fn func(*Future[T]) (U, error), streams []device.Stream) (r outcome[U]) {
	for _, s := range streams {
		if r.err = f.Order(s); r.err != nil {
			return r
		}
	}
	if r.value, r.err = fn(f); r.err != nil {
		return r
	}
	r.marks, r.err = record(streams)
	r.marks = inherit(r.marks, f.marks)
	return r
}

// ThenFuture is Then for a function that is asynchronous itself: the result is
// done when the future that fn returns is, with the same outcome. If fn returns no
// future the result fails with [ErrNilFuture].
func ThenFuture[T, U any](f *Future[T], fn func(*Future[T]) (*Future[U], error), streams ...device.Stream) *Future[U] {
	return Flatten(Then(f, fn, streams...))
}

// Flatten makes one future of two: it fails when f does, and otherwise has the
// outcome of the future that is the value of f. That one being nil is
// [ErrNilFuture], as is f, and its being the result itself [ErrCycle].
func Flatten[T any](f *Future[*Future[T]]) *Future[T] {
	if f == nil {
		return Failed[T](ErrNilFuture)
	}
	out := &Future[T]{onPanic: f.onPanic, activity: f.activity}
	f.watch(&outer[T]{f, out})
	return out
}

// outer watches the first future of Flatten.
type outer[T any] struct {
	f   *Future[*Future[T]]
	out *Future[T]
}

func (o *outer[T]) completed(err error) {
	next := o.f.value
	switch {
	case err != nil:
	case next == nil:
		err = ErrNilFuture
	case next == o.out:
		err = ErrCycle
	}
	if err == nil {
		next.watch(&inner[T]{next, o.out, o.f.marks})
		return
	}
	var none T
	_ = o.out.complete(none, err, nil) // unless it was cancelled
}

// inner watches the second one.
type inner[T any] struct {
	f     *Future[T]
	out   *Future[T]
	marks []mark // of the first one
}

func (i *inner[T]) completed(err error) {
	_ = i.out.complete(i.f.value, err, slices.Concat(i.f.marks, i.marks)) // unless it was cancelled
}
