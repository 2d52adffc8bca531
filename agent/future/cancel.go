package future

// Options are for who makes a future and completes it later. All are optional.
type Options struct {
	// Recall takes back what nobody may use any more once the future is done, as
	// memory that is still being sent from. It runs within Cancel, before the future
	// fails, and returns when that is so: soon. It may run several times at once, and
	// the future may become done otherwise meanwhile. The cause is never nil.
	Recall func(cause error)

	// OnCancel is told that the future was cancelled, so that whoever works on
	// the value can stop; it runs once at most, within Cancel, and must not block.
	// The cause is never nil.
	OnCancel func(cause error)

	// OnPanic is told of each panic in Recall, in OnCancel and in a function given to
	// OnDone, of this future and of those that Then and others make of it. It may be
	// called by several goroutines at once. Without it panics are logged to
	// slog.Default().
	OnPanic func(*PanicError)

	// Activity is told of goroutines that run functions given to OnDone and to Then,
	// of this future and of those that Then and others make of it.
	Activity Activity
}

// Activity is for who waits until nothing is under way, callbacks included.
type Activity interface {
	// Begin is called before a goroutine that runs callbacks is started, and before
	// the call returns that completes the future, or adds a callback to one that is
	// done.
	Begin()

	// End is called when that goroutine has run all there were.
	End()
}

// NewWith makes a pending future with options.
func NewWith[T any](o Options) *Future[T] {
	return &Future[T]{recall: o.Recall, onCancel: o.OnCancel, onPanic: o.OnPanic, activity: o.Activity}
}

// Cancel gives f up: it fails with a [*CancelError], which matches [ErrCancelled]
// and cause, or with ErrCancelled itself if cause is nil, and its producer is told
// through Options.OnCancel. Cancel reports whether it did that: a future that is
// done stays as it is. It returns, and the future fails, when what the producer has
// borrowed is taken back; see Options.Recall.
//
// It reaches no further: the futures that f was made of go on, and those made of f
// see it fail.
func (f *Future[T]) Cancel(cause error) bool {
	err := ErrCancelled
	if cause != nil {
		err = &CancelError{Cause: cause}
	} else {
		cause = err
	}
	if f.activity != nil { // from the end of what is recalled to the callbacks
		f.activity.Begin()
		defer f.activity.End()
	}
	f.mu.Lock()
	recall, tell := f.recall, f.onCancel // taken before completing lets go of them
	f.mu.Unlock()
	if recall != nil {
		f.protect(func() { recall(cause) })
	}
	var none T
	if f.complete(none, err, nil) != nil {
		return false
	}
	if tell != nil {
		f.protect(func() { tell(cause) })
	}
	return true
}
