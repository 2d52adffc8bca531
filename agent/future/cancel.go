package future

// Options are for who makes a future and completes it later. All are optional.
type Options struct {
	// OnCancel is told that the future was cancelled, so that whoever works on
	// the value can stop; it runs once at most, within Cancel, and must not block.
	// The cause is never nil.
	OnCancel func(cause error)

	// OnPanic is told of each panic in OnCancel and in a function given to OnDone,
	// of this future and of those that Then and others make of it. It may be called
	// by several goroutines at once. Without it panics are logged to
	// slog.Default().
	OnPanic func(*PanicError)
}

// NewWith makes a pending future with options.
func NewWith[T any](o Options) *Future[T] {
	return &Future[T]{onCancel: o.OnCancel, onPanic: o.OnPanic}
}

// Cancel gives f up: it fails with a [*CancelError], which matches [ErrCancelled]
// and cause, or with ErrCancelled itself if cause is nil, and its producer is told
// through Options.OnCancel. Cancel reports whether it did that: a future that is
// done stays as it is.
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
	f.mu.Lock()
	tell := f.onCancel // taken before completing lets go of it
	f.mu.Unlock()
	var none T
	if f.complete(none, err, nil) != nil {
		return false
	}
	if tell != nil {
		f.protect(func() { tell(cause) })
	}
	return true
}
