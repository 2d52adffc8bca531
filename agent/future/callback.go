package future

import "log/slog"

// OnDone runs fn with f once f is done, or soon if it is already. The callbacks of
// a future run in the order they were added, by OnDone or by [Then], on a goroutine
// of their own, one at a time: they may wait for other futures, complete others, and
// add callbacks, but not wait for what a callback behind them will do. A panic goes
// to Options.OnPanic and ends neither the process nor the other callbacks. The error
// is [ErrNilCallback].
func (f *Future[T]) OnDone(fn func(*Future[T])) error {
	if fn == nil {
		return ErrNilCallback
	}
	f.enqueue(func() { fn(f) })
	return nil
}

func (f *Future[T]) enqueue(callback func()) {
	f.mu.Lock()
	f.callbacks = append(f.callbacks, callback)
	start := f.isDone.Load() && !f.draining
	if start {
		f.draining = true
	}
	f.mu.Unlock()
	if start {
		f.begin()
		go f.drain()
	}
}

// begin tells that a goroutine is about to run callbacks.
func (f *Future[T]) begin() {
	if f.activity != nil {
		f.activity.Begin()
	}
}

// drain runs callbacks until there are none.
func (f *Future[T]) drain() {
	empty := false
	defer func() {
		switch {
		case !empty: // a callback ended the goroutine: the others need a new one
			go f.drain()
		case f.activity != nil:
			f.activity.End()
		}
	}()
	for callback := f.next(); callback != nil; callback = f.next() {
		f.protect(callback)
	}
	empty = true
}

// next takes the oldest callback, or ends the goroutine's turn and returns nil.
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

// protect runs a function of the application and survives its panic.
func (f *Future[T]) protect(run func()) {
	defer func() {
		if p := recover(); p != nil {
			f.report(caught(p))
		}
	}()
	run()
}

func (f *Future[T]) report(p *PanicError) {
	if f.onPanic == nil {
		logPanic(p)
		return
	}
	defer func() {
		if again := recover(); again != nil {
			logPanic(p)
			logPanic(caught(again))
		}
	}()
	f.onPanic(p)
}

// logPanic is for panics that nobody else wants to know of: a bug should not pass
// unseen.
func logPanic(p *PanicError) {
	slog.Default().Error("future: callback panicked", "panic", p.Value, "stack", string(p.Stack))
}
