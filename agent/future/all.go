package future

import (
	"context"
	"slices"
	"sync/atomic"
)

// All is done when all futures of a list are, and has them as its value; it fails
// if any has, then too when all are done, with the first error in the order of the
// list. Upstream's collect_all ends at once at some errors and keeps others until
// the values are looked at; those who want to know at once use [WaitAll].
//
// Waiting for it makes the streams of the context wait for all values. A list
// without futures is done; one with nil in it has failed with [ErrNilFuture].
func All[T any](fs ...*Future[T]) *Future[[]*Future[T]] {
	if slices.Contains(fs, nil) {
		return Failed[[]*Future[T]](ErrNilFuture)
	}
	g := &gathering[T]{fs: slices.Clone(fs), out: &Future[[]*Future[T]]{}}
	if len(fs) > 0 {
		g.out.onPanic, g.out.activity = fs[0].onPanic, fs[0].activity
	}
	g.left.Store(int64(len(fs)) + 1) // one more, until all are watched
	for _, f := range g.fs {
		f.watch(g)
	}
	g.completed(nil)
	return g.out
}

// gathering counts the futures of All.
type gathering[T any] struct {
	fs   []*Future[T]
	left atomic.Int64
	out  *Future[[]*Future[T]]
}

func (g *gathering[T]) completed(error) {
	if g.left.Add(-1) > 0 {
		return
	}
	var err error
	var marks []mark
	for _, f := range g.fs {
		if err == nil {
			err = f.err
		}
		marks = append(marks, f.marks...)
	}
	_ = g.out.complete(g.fs, err, marks) // unless it was cancelled
}

// WaitAll waits for all futures and returns their values in the order of the list.
// As soon as any fails it returns that error and waits no longer; of several that
// have failed before, it is the first of the list. The others are not cancelled.
// Otherwise it is like Wait; nil in the list is [ErrNilFuture].
func WaitAll[T any](ctx context.Context, fs ...*Future[T]) ([]T, error) {
	all := make([]Any, len(fs))
	for i, f := range fs {
		all[i] = f
	}
	if err := Await(ctx, all...); err != nil {
		return nil, err
	}
	values := make([]T, len(fs))
	for i, f := range fs {
		values[i] = f.value
	}
	return values, nil
}
