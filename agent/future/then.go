package future

import (
	"log/slog"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Then returns a future that completes with what fn returns: a value or an error. If fn panics, the
// result fails with a [*PanicError]; if fn calls runtime.Goexit, with [ErrGoexit]. fn runs once f
// is done, also if f has failed, and obtains the value or the error of f from f.Result. fn is a
// callback like those of [Future.OnDone]: it runs on another goroutine, in the order in which the
// callbacks of f were added. It runs even if the result has been cancelled.
//
// If fn enqueues work on streams of devices, pass these streams; Then keeps the slice until fn has
// returned. Each of them waits for the work that computes the value of f before it executes the
// work of fn. A wait for the result then waits for all work that these streams have when fn
// returns. On devices without one of these streams it waits for the work that computes the value of
// f, so fn may return parts of that value. If a stream cannot wait, fn does not run and the result
// fails with a [*StreamError]. The result fails so too if a stream cannot record an event after fn.
//
// If f or fn is nil, the result has failed already, with [ErrNilFuture] or [ErrNilCallback].
func Then[T, U any](f *Future[T], fn func(*Future[T]) (U, error), streams ...device.Stream) *Future[U] {
	switch {
	case f == nil:
		return Failed[U](ErrNilFuture)
	case fn == nil:
		return Failed[U](ErrNilCallback)
	}
	out := &Future[U]{onPanic: f.onPanic, activity: f.activity, devices: f.devices}
	f.enqueue(func() {
		derive(f, out, fn, streams, func(*U) ([]readyEvent, error) { return record(streams) })
	})
	return out
}

// outcome holds the arguments of Future.complete.
type outcome[T any] struct {
	value  T
	err    error
	events []readyEvent
}

// derive makes the streams wait for the work that computes the value of f, runs fn(f), and
// completes out with its value or error. With a value, out gets the events that recordEvents returns
// after fn and those of f for other devices. If a stream cannot wait, out fails with a
// *StreamError, and fn does not run; if recordEvents fails, out fails with that error. out fails with a
// *PanicError if fn panics, and with ErrGoexit if fn ends the goroutine. f must be done.
func derive[T, U any](f *Future[T], out *Future[U], fn func(*Future[T]) (U, error), streams []device.Stream, recordEvents func(*U) ([]readyEvent, error)) {
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
	events, err := recordEvents(&value)
	r = outcome[U]{value, err, mergeEvents(events, f.events)}
}

// ThenFuture runs fn once f is done, under the conditions of [Then], and returns a future that
// completes as the future that fn returns does: with the same value or error. The result fails with
// the error of fn if that is not nil, with [ErrNilFuture] if fn returns nil and no error, and with
// [ErrCycle] if fn returns the result itself. It fails as with Then if fn panics or ends the
// goroutine, if a stream cannot wait, or if f or fn is nil.
func ThenFuture[T, U any](f *Future[T], fn func(*Future[T]) (*Future[U], error), streams ...device.Stream) *Future[U] {
	return Flatten(Then(f, fn, streams...))
}

// Flatten returns a future that completes with the value or the error of the inner future: the
// future that is the value of f. If f fails, the result fails with the same error. The result fails
// with [ErrNilFuture] if f or the inner future is nil, and with [ErrCycle] if the inner future is
// the result itself. A wait for the result makes streams wait for the work of both futures. The
// result has the options OnPanic and Activity of f.
func Flatten[T any](f *Future[*Future[T]]) *Future[T] {
	if f == nil {
		return Failed[T](ErrNilFuture)
	}
	out := &Future[T]{onPanic: f.onPanic, activity: f.activity, devices: f.devices}
	f.watch(&flattenOuter[T]{f, out})
	return out
}

// flattenOuter watches f, whose value is a future, for Flatten. When f is done, it makes out
// complete with the outcome of that future.
type flattenOuter[T any] struct {
	f   *Future[*Future[T]]
	out *Future[T]
}

// completed is called when o.f is done, with its error or nil. If o.f has a future as its value,
// completed registers a flattenInner with that future. Otherwise it makes o.out fail: with err if
// that is not nil, with ErrNilFuture if the value is nil, or with ErrCycle if the value is o.out.
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

// completed is called when i.f is done. It completes i.out with the value of i.f, with the events
// of i.f and i.events, or with err if that is not nil.
func (i *flattenInner[T]) completed(err error) {
	_ = i.out.complete(i.f.value, err, slices.Concat(i.f.events, i.events)) // has no effect if out was cancelled
}

// OnDone makes f call fn(f), on another goroutine, once f is done, or at once if it is done
// already. It returns without waiting: nil, or [ErrNilCallback] if fn is nil. f keeps fn until it
// has run.
//
// The callbacks of a future, added by OnDone, [Then] or [OnValue], run one at a time in the order
// in which they were added. A callback may wait for other futures, complete futures and add
// callbacks, but must not wait for a later callback of the same future. If a callback panics, the
// panic is passed to Options.OnPanic, or logged if that is nil; the process and the other callbacks
// continue. They continue also after a callback that calls runtime.Goexit.
func (f *Future[T]) OnDone(fn func(*Future[T])) error {
	if fn == nil {
		return ErrNilCallback
	}
	f.enqueue(func() { fn(f) })
	return nil
}

// Observe makes f call fn once f is done, or at once if it is done already, on the goroutine that
// completes f. That saves the goroutine of OnDone. fn must neither block nor panic: for the future of a call
// the goroutine may be the one that reads the messages of the worker.
func (f *Future[T]) Observe(fn func()) { f.watch(observer(fn)) }

// observer is the watcher of Observe.
type observer func()

func (fn observer) completed(error) { fn() }

// enqueue appends a callback to those that run once f is done, and returns without waiting. If f is
// done and no goroutine is running callbacks of f, it starts one. The caller must not hold f.mu.
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

// beginActivity calls Options.Activity.Begin, if Activity is set, before a goroutine starts that
// runs callbacks. drain calls End when that goroutine ends.
func (f *Future[T]) beginActivity() {
	if f.activity != nil {
		f.activity.Begin()
	}
}

// drain runs the callbacks of f in order until there are none, and then calls Options.Activity.End,
// if Activity is set. It must be started on a goroutine of its own, after beginActivity. If a
// callback ends that goroutine (runtime.Goexit), the other callbacks run on a new one.
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

// next removes the oldest callback of f and returns it. If there is none, next returns nil and
// clears f.draining, so that enqueue starts a new goroutine for the next callback; drain must then
// end. The caller must not hold f.mu.
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

// runProtected calls run, a function of the application. If run panics, runProtected recovers,
// passes the panic to reportPanic and returns. It does not stop runtime.Goexit.
func (f *Future[T]) runProtected(run func()) {
	defer func() {
		if p := recover(); p != nil {
			f.reportPanic(newPanicError(p))
		}
	}()
	run()
}

// reportPanic passes p to Options.OnPanic, or logs it if OnPanic is nil. If OnPanic panics itself,
// reportPanic recovers and logs both panics.
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

// logPanic logs the value and the stack of p to slog.Default() as an error.
func logPanic(p *PanicError) {
	slog.Default().Error("future: callback panicked", "panic", p.Value, "stack", string(p.Stack))
}
