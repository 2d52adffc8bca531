package store

import (
	"context"
	"errors"
	"sync"
)

// Prefix returns a handle on the part of s whose keys begin with prefix and a slash, the naming of
// PyTorch's PrefixStore. The methods of the handle take keys without this beginning. Closing the
// handle ends the calls and Watchers made through the handle, and leaves s open.
func Prefix(s Store, prefix string) Store {
	return newView(s, prefix+"/", func() error { return nil })
}

// view is a handle on the keys of base that begin with prefix. It has its own Close.
type view struct {
	base   Store
	prefix string
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	close  func() error
}

// newView returns a view of the keys of base that begin with prefix. Its first Close ends the calls
// and Watchers made through the view, calls release, and returns the result of release. Later calls
// of Close return the same result without calling release.
func newView(base Store, prefix string, release func() error) *view {
	v := &view{base: base, prefix: prefix}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.close = sync.OnceValue(func() error {
		v.cancel()
		return release()
	})
	return v
}

// call runs f with a context that ends with ctx or when the view is closed, and returns the error
// of f as an *Error with op and key, a key without the prefix. If the view is closed before f runs,
// f is not called and the error matches ErrClosed. If the view is closed by the time that f fails
// with context.Canceled, the error matches ErrClosed instead.
func (v *view) call(ctx context.Context, op, key string, f func(context.Context) error) error {
	if v.ctx.Err() != nil {
		return fail(op, key, ErrClosed)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(v.ctx, cancel)
	defer stop()
	err := f(ctx)
	if v.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = ErrClosed
	}
	return fail(op, key, err)
}

// Set sets the value of the key prefix+key in the base store. Its error, and those of the other
// methods, name key without the prefix, and match ErrClosed once the view is closed.
func (v *view) Set(ctx context.Context, key string, value []byte) error {
	return v.call(ctx, "set", key, func(ctx context.Context) error {
		return v.base.Set(ctx, v.prefix+key, value)
	})
}

func (v *view) Get(ctx context.Context, key string) (value []byte, err error) {
	err = v.call(ctx, "get", key, func(ctx context.Context) (err error) {
		value, err = v.base.Get(ctx, v.prefix+key)
		return err
	})
	return value, err
}

func (v *view) Wait(ctx context.Context, keys ...string) error {
	return v.call(ctx, "wait", firstKey(keys), func(ctx context.Context) error {
		full := make([]string, len(keys))
		for i, k := range keys {
			full[i] = v.prefix + k
		}
		return v.base.Wait(ctx, full...)
	})
}

func (v *view) Add(ctx context.Context, key string, delta int64) (n int64, err error) {
	err = v.call(ctx, "add", key, func(ctx context.Context) (err error) {
		n, err = v.base.Add(ctx, v.prefix+key, delta)
		return err
	})
	return n, err
}

func (v *view) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	err = v.call(ctx, "compare-and-set", key, func(ctx context.Context) (err error) {
		value, err = v.base.CompareAndSet(ctx, v.prefix+key, expected, desired)
		return err
	})
	return value, err
}

func (v *view) Delete(ctx context.Context, key string) (existed bool, err error) {
	err = v.call(ctx, "delete", key, func(ctx context.Context) (err error) {
		existed, err = v.base.Delete(ctx, v.prefix+key)
		return err
	})
	return existed, err
}

func (v *view) Watch(ctx context.Context, key string) (Watcher, error) {
	var w Watcher
	err := v.call(ctx, "watch", key, func(ctx context.Context) (err error) {
		w, err = v.base.Watch(ctx, v.prefix+key)
		return err
	})
	if err != nil {
		return nil, err
	}
	// Closing the view closes its watchers.
	stop := context.AfterFunc(v.ctx, func() { w.Close() })
	return &viewWatcher{view: v, key: key, base: w, stop: stop}, nil
}

func (v *view) Close() error { return v.close() }

type viewWatcher struct {
	view *view
	key  string
	base Watcher
	stop func() bool
}

// Next blocks until the watched key has changed, and returns the change, whose value belongs to the
// caller. The error, an [*Error], matches ErrClosed once the Watcher, its view or the base store is
// closed. Otherwise it is that of ctx or of the Watcher of the base store.
func (w *viewWatcher) Next(ctx context.Context) (c Change, err error) {
	err = w.view.call(ctx, "watch", w.key, func(ctx context.Context) (err error) {
		c, err = w.base.Next(ctx)
		return err
	})
	return c, err
}

// Close closes the Watcher of the base store and returns the error with which that fails. Next then
// fails with ErrClosed.
func (w *viewWatcher) Close() error {
	w.stop()
	return w.base.Close()
}
