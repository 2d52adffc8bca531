package storetest

import (
	"context"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

var waitCases = []testCase{
	{"ForNothing", waitForNothing},
	{"ForWhatExists", waitForWhatExists},
	{"ForSet", waitForSet},
	{"ForAdd", waitForAdd},
	{"ForCompareAndSet", waitForCompareAndSet},
	{"ForMany", waitForMany},
	{"ByMany", waitByMany},
	{"Cancelled", waitCancelled},
	{"AfterDelete", waitAfterDelete},
	{"Await", await},
}

// wait calls s.Wait for keys on a new goroutine, and returns a channel that receives the result.
func (f fixture) wait(s store.Store, keys ...string) <-chan error {
	done := testwait.Start(func() error { return s.Wait(f.ctx, keys...) })
	yield()
	return done
}

func waitForNothing(f fixture) { require.NoError(f, f.a.Wait(f.ctx)) }

func waitForWhatExists(f fixture) {
	f.set(f.a, "one", "1")
	f.set(f.b, "two", "2")
	require.NoError(f, f.a.Wait(f.ctx, "one", "two", "one"))
}

func waitForSet(f fixture) {
	waited := f.wait(f.a, "key")
	f.set(f.b, "other", "1")
	f.set(f.b, "key", "1")
	require.NoError(f, testwait.Finish(f, waited))
	f.wantValue("key", "1")
}

func waitForAdd(f fixture) {
	waited := f.wait(f.a, "key")
	_, err := f.b.Add(f.ctx, "key", 1)
	require.NoError(f, err)
	require.NoError(f, testwait.Finish(f, waited))
}

func waitForCompareAndSet(f fixture) {
	if f.backend.CompareAndSetWakesNobody {
		f.Skip("CompareAndSet does not wake Wait in this store")
	}
	waited := f.wait(f.a, "key")
	_, err := f.b.CompareAndSet(f.ctx, "key", nil, []byte("1"))
	require.NoError(f, err)
	require.NoError(f, testwait.Finish(f, waited))
}

// waitForMany tests that Wait with several keys returns once the last one exists, and not before,
// in whatever order they are created.
func waitForMany(f fixture) {
	keys := []string{"c", "a", "d", "b"}
	f.set(f.a, "d", "")
	waited := f.wait(f.a, keys...)
	for _, k := range []string{"b", "a"} {
		f.set(f.b, k, "")
		yield()
	}
	select {
	case err := <-waited:
		require.Fail(f, "one key is missing", "%v", err)
	default:
	}
	f.set(f.b, "c", "")
	require.NoError(f, testwait.Finish(f, waited))
}

func waitByMany(f fixture) {
	var waits []<-chan error
	for i := range 20 {
		waits = append(waits, f.wait(f.a, fmt.Sprint("key", i%4)), f.wait(f.b, "key0", "key3"))
	}
	for i := range 4 {
		f.set(f.a, fmt.Sprint("key", i), "")
	}
	for _, w := range waits {
		require.NoError(f, testwait.Finish(f, w))
	}
}

// waitCancelled tests that Wait fails when its context expires or is cancelled, and that another
// Wait for the same key goes on.
func waitCancelled(f fixture) {
	expired, cancel := context.WithTimeout(f.ctx, 1)
	defer cancel()
	err := f.a.Wait(expired, "key")
	require.ErrorIs(f, err, store.ErrTimeout)
	require.ErrorIs(f, err, context.DeadlineExceeded)

	ctx, cancel := context.WithCancel(f.ctx)
	waited := testwait.Start(func() error { return f.a.Wait(ctx, "key") })
	kept := f.wait(f.a, "key")
	cancel()
	err = testwait.Finish(f, waited)
	require.ErrorIs(f, err, context.Canceled)
	require.NotErrorIs(f, err, store.ErrTimeout)
	f.set(f.a, "key", "1")
	require.NoError(f, testwait.Finish(f, kept))
	require.NoError(f, f.a.Wait(f.ctx, "key"))
}

func waitAfterDelete(f fixture) {
	f.set(f.a, "key", "1")
	_, err := f.a.Delete(f.ctx, "key")
	require.NoError(f, err)
	waited := f.wait(f.b, "key")
	select {
	case err := <-waited:
		require.Fail(f, "the key is gone", "%v", err)
	default:
	}
	f.set(f.a, "key", "2")
	require.NoError(f, testwait.Finish(f, waited))
}

func await(f fixture) {
	got := testwait.Start(func() string {
		value, err := store.Await(f.ctx, f.a, "key")
		return fmt.Sprint(string(value), err)
	})
	yield()
	f.set(f.b, "key", "1")
	require.Equal(f, "1<nil>", testwait.Finish(f, got))
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	_, err := store.Await(ctx, f.a, "other")
	require.ErrorIs(f, err, context.Canceled)
}
