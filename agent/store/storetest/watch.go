package storetest

import (
	"context"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

var watchCases = []testCase{
	{"EachChange", watchEachChange},
	{"OnlyItsKey", watchOnlyItsKey},
	{"OnlyLaterChanges", watchOnlyLaterChanges},
	{"EndsAtTheLast", watchEndsAtTheLast},
	{"Several", watchSeveral},
	{"Cancelled", watchCancelled},
	{"Closed", watchClosed},
	{"OfAStoreThatCloses", watchOfAStoreThatCloses},
}

func (f fixture) watch(s store.Store, key string) store.Watcher {
	f.Helper()
	w, err := s.Watch(f.ctx, key)
	require.NoError(f, err)
	f.Cleanup(func() { w.Close() })
	return w
}

// next calls w.Next on a new goroutine, and returns a channel that receives the result as
// changeText formats it.
func (f fixture) next(w store.Watcher) <-chan string {
	done := testwait.Start(func() string { return changeText(w.Next(f.ctx)) })
	yield()
	return done
}

// changeText returns the text of err, or "gone" if c is a deletion, or "is " and the value.
func changeText(c store.Change, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case !c.Exists:
		return "gone"
	}
	return "is " + string(c.Value)
}

func watchEachChange(f fixture) {
	w := f.watch(f.a, "key")
	for _, step := range []struct {
		want string
		do   func() error
	}{
		{"is one", func() error { return f.b.Set(f.ctx, "key", []byte("one")) }},
		{"is two", func() error { return f.a.Set(f.ctx, "key", []byte("two")) }},
		{"is 3", func() error {
			_, err := f.b.CompareAndSet(f.ctx, "key", []byte("two"), []byte("3"))
			return err
		}},
		{"is 4", func() error { _, err := f.b.Add(f.ctx, "key", 1); return err }},
		{"gone", func() error { _, err := f.b.Delete(f.ctx, "key"); return err }},
		{"is ", func() error { return f.b.Set(f.ctx, "key", nil) }},
	} {
		next := f.next(w)
		require.NoError(f, step.do())
		require.Equal(f, step.want, testwait.Finish(f, next))
	}
}

func watchOnlyItsKey(f fixture) {
	w := f.watch(f.a, "key")
	next := f.next(w)
	f.set(f.b, "key2", "1")
	f.set(f.b, "ke", "1")
	f.set(f.b, "key/", "1")
	_, err := f.b.CompareAndSet(f.ctx, "key", []byte("none"), []byte("1"))
	require.ErrorIs(f, err, store.ErrNotFound)
	_, err = f.b.Delete(f.ctx, "key")
	require.NoError(f, err)
	f.set(f.b, "key", "2")
	require.Equal(f, "is 2", testwait.Finish(f, next))
}

func watchOnlyLaterChanges(f fixture) {
	f.set(f.b, "key", "before")
	w := f.watch(f.a, "key")
	next := f.next(w)
	f.set(f.b, "key", "after")
	require.Equal(f, "is after", testwait.Finish(f, next))
}

// watchEndsAtTheLast tests that a slow caller of Next may miss changes, but gets the last one, and
// none twice.
func watchEndsAtTheLast(f fixture) {
	w := f.watch(f.a, "key")
	const last = 50
	for i := range last + 1 {
		f.set(f.b, "key", fmt.Sprintf("%03d", i))
	}
	before := ""
	for {
		c, err := w.Next(f.ctx)
		require.NoError(f, err)
		require.Greater(f, string(c.Value), before)
		if before = string(c.Value); before == fmt.Sprintf("%03d", last) {
			break
		}
	}
	next := f.next(w)
	_, err := f.b.Delete(f.ctx, "key")
	require.NoError(f, err)
	require.Equal(f, "gone", testwait.Finish(f, next))
}

func watchSeveral(f fixture) {
	one, same, other := f.watch(f.a, "one"), f.watch(f.a, "one"), f.watch(f.b, "other")
	f.set(f.b, "one", "1")
	f.set(f.a, "other", "2")
	require.Equal(f, "is 1", testwait.Finish(f, f.next(one)))
	require.NoError(f, one.Close())
	require.Equal(f, "is 1", testwait.Finish(f, f.next(same)))
	require.Equal(f, "is 2", testwait.Finish(f, f.next(other)))
	f.set(f.b, "one", "3")
	require.Equal(f, "is 3", testwait.Finish(f, f.next(same)))
	again := f.watch(f.a, "one")
	f.set(f.b, "one", "4")
	require.Equal(f, "is 4", testwait.Finish(f, f.next(again)))
}

// watchCancelled tests that Watch and Next fail when their context ends, and that a change after a
// cancelled Next is still returned by the next call.
func watchCancelled(f fixture) {
	w := f.watch(f.a, "key")
	ctx, cancel := context.WithCancel(f.ctx)
	waited := testwait.Start(func() error { _, err := w.Next(ctx); return err })
	yield()
	cancel()
	require.ErrorIs(f, testwait.Finish(f, waited), context.Canceled)
	_, err := f.a.Watch(ctx, "key")
	require.ErrorIs(f, err, context.Canceled)
	expired, cancel := context.WithTimeout(f.ctx, 1)
	defer cancel()
	_, err = w.Next(expired)
	require.ErrorIs(f, err, store.ErrTimeout)
	f.set(f.b, "key", "1")
	require.Equal(f, "is 1", testwait.Finish(f, f.next(w)))
}

func watchClosed(f fixture) {
	w := f.watch(f.a, "key")
	next := testwait.Start(func() error { _, err := w.Next(f.ctx); return err })
	yield()
	require.NoError(f, w.Close())
	require.NoError(f, w.Close())
	require.ErrorIs(f, testwait.Finish(f, next), store.ErrClosed)
	_, err := w.Next(f.ctx)
	require.ErrorIs(f, err, store.ErrClosed)
	f.set(f.a, "key", "1")
	f.wantValue("key", "1")
}

func watchOfAStoreThatCloses(f fixture) {
	w := f.watch(f.a, "key")
	next := testwait.Start(func() error { _, err := w.Next(f.ctx); return err })
	yield()
	require.NoError(f, f.a.Close())
	require.ErrorIs(f, testwait.Finish(f, next), store.ErrClosed)
	require.NoError(f, w.Close())
}
