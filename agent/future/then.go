package future

import (
	"log/slog"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Then returns a future of the result of fn: its value, its error, or its panic as a
// [*PanicError]. If fn ends the goroutine, the result fails with [ErrGoexit]. fn runs once f is
// done, even if f has failed; it reads the outcome with f.Result. It runs as a callback of OnDone
// does.
//
// If fn enqueues work on devices, pass the streams. Before fn runs, each of them waits for the
// work that computes the value of f; the result waits for the work that they have when fn returns.
// If a stream cannot wait, fn does not run and the result fails with a [*StreamError]. On other
// devices the result waits for the same work as f, so fn may return parts of the value of f.
//
// If f or fn is nil the result has failed, with [ErrNilFuture] or [ErrNilCallback].
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

// outcome holds the arguments of Future.complete.
type outcome[T any] struct {
	value  T
	err    error
	events []readyEvent
}

// derive makes the streams wait for the value of f, runs fn, and completes out with its result
// and the events of the streams, even if fn panics or ends the goroutine. f must be done.
func derive[T, U any](f *Future[T], out *Future[U], fn func(*Future[T]) (U, error), streams []device.Stream) {
	r := outcome[U]{err: ErrGoexit}
	defer func() {
		if p := recover(); p != nil {
			r.err = newPanicError(p)
		}
		_ = out.complete(r.value, r.err, r.events) // has no effect if out was cancelled
	}()
	for _, s := range streams {
		if err := f.Order(s); err != nil {
			r.err = err
			return
		}
	}
	value, err := fn(f)
	if err != nil {
		r.err = err
		return
	}
	events, err := record(streams)
	r = outcome[U]{value, err, mergeEvents(events, f.events)}
}

// ThenFuture is Then for a function that returns a future: the result has the outcome of that
// future. If fn returns nil, the result fails with [ErrNilFuture].
func ThenFuture[T, U any](f *Future[T], fn func(*Future[T]) (*Future[U], error), streams ...device.Stream) *Future[U] {
	return Flatten(Then(f, fn, streams...))
}

// Flatten returns a future with the outcome of the future that is the value of f. If f fails, the
// result fails with the same error. It fails with [ErrNilFuture] if f or its value is nil, and
// with [ErrCycle] if the value of f is the result itself.
func Flatten[T any](f *Future[*Future[T]]) *Future[T] {
	if f == nil {
		return Failed[T](ErrNilFuture)
	}
	out := &Future[T]{onPanic: f.onPanic, activity: f.activity}
	f.watch(&flattenOuter[T]{f, out})
	return out
}

// flattenOuter watches f, whose value is a future, for Flatten. When f is done, it makes out
// complete with the outcome of that future.
type flattenOuter[T any] struct {
	f   *Future[*Future[T]]
	out *Future[T]
}

// completed implements watcher.
func (o *flattenOuter[T]) completed(err error) {
	next := o.f.value
	switch {
	case err != nil:
	case next == nil:
		err = ErrNilFuture
	case next == o.out:
		err = ErrCycle
	}
	if err == nil {
		next.watch(&flattenInner[T]{next, o.out, o.f.events})
		return
	}
	var zero T
	_ = o.out.complete(zero, err, nil) // has no effect if out was cancelled
}

// flattenInner watches f, the value of the future given to Flatten, and completes out with the
// outcome of f.
type flattenInner[T any] struct {
	f      *Future[T]
	out    *Future[T]
	events []readyEvent // of the first future
}

// completed implements watcher.
func (i *flattenInner[T]) completed(err error) {
	_ = i.out.complete(i.f.value, err, slices.Concat(i.f.events, i.events)) // has no effect if out was cancelled
}

// OnDone runs fn with f once f is done, or soon if it is already. The callbacks of a future,
// added by OnDone or by [Then], run one at a time in the order of their addition, on a goroutine
// of the future. They may wait for other futures, complete others and add callbacks, but must not
// wait for a later callback of the same future. A panic is passed to Options.OnPanic; the process
// and the other callbacks continue. OnDone returns at once, with [ErrNilCallback] if fn is nil.
func (f *Future[T]) OnDone(fn func(*Future[T])) error {
	if fn == nil {
		return ErrNilCallback
	}
	f.enqueue(func() { fn(f) })
	return nil
}

// enqueue adds a callback to be run once f is done. If f is done and no goroutine runs callbacks,
// it starts one.
func (f *Future[T]) enqueue(callback func()) {
	f.mu.Lock()
	f.callbacks = append(f.callbacks, callback)
	start := f.isDone.Load() && !f.draining
	if start {
		f.draining = true
	}
	f.mu.Unlock()
	if start {
		f.beginActivity()
		go f.drain()
	}
}

// beginActivity reports to Options.Activity that a goroutine will run callbacks.
func (f *Future[T]) beginActivity() {
	if f.activity != nil {
		f.activity.Begin()
	}
}

// drain runs the callbacks of f, one after the other, until none are left. It runs on a goroutine
// of its own, after beginActivity. If a callback ends the goroutine, drain continues on another
// one.
func (f *Future[T]) drain() {
	empty := false
	defer func() {
		switch {
		case !empty: // a callback ended the goroutine: run the others on a new one
			go f.drain()
		case f.activity != nil:
			f.activity.End()
		}
	}()
	for callback := f.next(); callback != nil; callback = f.next() {
		f.runProtected(callback)
	}
	empty = true
}

// next removes and returns the oldest callback. If there is none it returns nil, and drain must
// end: the next callback starts another goroutine.
func (f *Future[T]) next() func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.callbacks) == 0 {
		f.callbacks, f.draining = nil, false
		return nil
	}
	callback := f.callbacks[0]
	f.callbacks[0] = nil
	f.callbacks = f.callbacks[1:]
	return callback
}

// runProtected runs a function of the application, and recovers and reports its panic.
func (f *Future[T]) runProtected(run func()) {
	defer func() {
		if p := recover(); p != nil {
			f.reportPanic(newPanicError(p))
		}
	}()
	run()
}

// reportPanic passes p to Options.OnPanic, or logs it if that is not set or panics.
func (f *Future[T]) reportPanic(p *PanicError) {
	if f.onPanic == nil {
		logPanic(p)
		return
	}
	defer func() {
		if again := recover(); again != nil {
			logPanic(p)
			logPanic(newPanicError(again))
		}
	}()
	f.onPanic(p)
}

// logPanic logs a panic for which there is no handler, so that it is not lost.
func logPanic(p *PanicError) {
	slog.Default().Error("future: callback panicked", "panic", p.Value, "stack", string(p.Stack))
}
