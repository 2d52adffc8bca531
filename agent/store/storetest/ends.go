package storetest

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

var endCases = []testCase{
	{"ContextThatHasEnded", contextThatHasEnded},
	{"Close", closes},
	{"CloseUnderWait", closeUnderWait},
}

// all makes every call once, and returns their errors by name.
func all(ctx context.Context, s store.Store) map[string]error {
	errs := map[string]error{"set": s.Set(ctx, "key", []byte("changed"))}
	_, errs["get"] = s.Get(ctx, "key")
	errs["wait"] = s.Wait(ctx, "key")
	_, errs["add"] = s.Add(ctx, "number", 1)
	_, errs["compare-and-set"] = s.CompareAndSet(ctx, "key", []byte("1"), []byte("changed"))
	_, errs["delete"] = s.Delete(ctx, "key")
	_, errs["watch"] = s.Watch(ctx, "key")
	return errs
}

// A call under such a context does nothing, even where it would not block.
func contextThatHasEnded(f fixture) {
	f.set(f.a, "key", "1")
	f.set(f.a, "number", "1")
	cancelled, cancel := context.WithCancel(f.ctx)
	cancel()
	for op, err := range all(cancelled, f.a) {
		require.ErrorIs(f, err, context.Canceled, op)
		var typed *store.Error
		require.ErrorAs(f, err, &typed, op)
		require.Equal(f, op, typed.Op)
	}
	f.wants("key", "1")
	f.wants("number", "1")
}

func closes(f fixture) {
	f.set(f.a, "key", "1")
	require.NoError(f, f.a.Close())
	require.NoError(f, f.a.Close())
	for op, err := range all(f.ctx, f.a) {
		require.ErrorIs(f, err, store.ErrClosed, op)
	}
}

func closeUnderWait(f fixture) {
	one, two := f.wait(f.a, "key"), f.wait(f.a, "one", "two")
	require.NoError(f, f.a.Close())
	require.ErrorIs(f, patience.Finish(f, one), store.ErrClosed)
	require.ErrorIs(f, patience.Finish(f, two), store.ErrClosed)
}
