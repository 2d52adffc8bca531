package future

// OnValue runs fn once f is done, as a callback of OnDone does: with a pointer to a
// copy of the value, a *T for a Future[T], or with the error. It is for who does not
// know T. The error is [ErrNilCallback] or [ErrNilFuture].
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

func (f *Future[T]) onValue(fn func(ptr any, err error)) {
	f.enqueue(func() {
		value := f.value
		fn(&value, f.err)
	})
}
