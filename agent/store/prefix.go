package store

import (
	"context"
	"errors"
	"sync"
)

// Prefix is the part of s whose keys begin with prefix and a slash, as PyTorch's
// PrefixStore names them. Its Close ends the calls made through it, and leaves s
// as it is.
func Prefix(s Store, prefix string) Store {
	return newView(s, prefix+"/", func() error { return nil })
}

// view is a handle of its own on a store that others use as well.
type view struct {
	base   Store
	prefix string
	life   context.Context
	end    context.CancelFunc
	close  func() error
}

// newView returns a view on keys with this prefix. The first Close calls release,
// and all of them return what that returned.
func newView(base Store, prefix string, release func() error) *view {
	v := &view{base: base, prefix: prefix}
	v.life, v.end = context.WithCancel(context.Background())
	v.close = sync.OnceValue(func() error {
		v.end()
		return release()
	})
	return v
}

// bound makes a call end with the view too. Call free with the result.
func (v *view) bound(ctx context.Context) (bound context.Context, free func()) {
	bound, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(v.life, cancel)
	return bound, func() { unlink(); cancel() }
}

// call runs f and names its error by the key that the caller knows.
func (v *view) call(ctx context.Context, op, key string, f func(context.Context) error) error {
	if v.life.Err() != nil {
		return fail(op, key, ErrClosed)
	}
	ctx, free := v.bound(ctx)
	defer free()
	return v.blame(op, key, f(ctx))
}

// blame tells a call that ended with the view from one that the caller gave up.
func (v *view) blame(op, key string, err error) error {
	if v.life.Err() != nil && errors.Is(err, context.Canceled) {
		err = ErrClosed
	}
	return fail(op, key, err)
}

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
	return v.call(ctx, "wait", first(keys), func(ctx context.Context) error {
		longer := make([]string, len(keys))
		for i, k := range keys {
			longer[i] = v.prefix + k
		}
		return v.base.Wait(ctx, longer...)
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
	// A view that is dropped takes the watcher with it.
	stop := context.AfterFunc(v.life, func() { w.Close() })
	return &viewWatcher{view: v, key: key, base: w, stop: stop}, nil
}

func (v *view) Close() error { return v.close() }

type viewWatcher struct {
	view *view
	key  string
	base Watcher
	stop func() bool
}

func (w *viewWatcher) Next(ctx context.Context) (c Change, err error) {
	err = w.view.call(ctx, "watch", w.key, func(ctx context.Context) (err error) {
		c, err = w.base.Next(ctx)
		return err
	})
	return c, err
}

func (w *viewWatcher) Close() error {
	w.stop()
	return w.base.Close()
}
