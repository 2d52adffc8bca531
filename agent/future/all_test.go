package future_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

func pending[T any](n int) []*future.Future[T] {
	fs := make([]*future.Future[T], n)
	for i := range fs {
		fs[i] = future.New[T]()
	}
	return fs
}

// values waits for the future all, a result of All, and returns the values of the futures in its
// list. It fails the test if one has failed.
func values[T any](t *testing.T, all *future.Future[[]*future.Future[T]]) []T {
	t.Helper()
	fs, err := all.Wait(t.Context())
	require.NoError(t, err)
	var out []T
	for _, f := range fs {
		v, err := f.Result()
		require.NoError(t, err)
		out = append(out, v)
	}
	return out
}

func TestAll(t *testing.T) {
	require.Empty(t, values(t, future.All[int]()))

	fs := pending[int](3)
	all := future.All(append(fs, fs[0])...)
	fs[0], fs[2] = fs[2], fs[0] // the caller may modify its list
	for i, f := range fs {
		require.False(t, all.IsDone())
		require.NoError(t, f.Set(i))
	}
	require.Equal(t, []int{2, 1, 0, 2}, values(t, all))
	require.Equal(t, []int{2, 1, 0}, values(t, future.All(fs[2], fs[1], fs[0])), "of futures that are done")
}

// TestAllFails checks that the result of All stays pending until all futures are done, and then
// fails with the error of the first failed one in the list, not of the one that failed first.
func TestAllFails(t *testing.T) {
	fs := pending[int](4)
	all := future.All(fs...)
	require.NoError(t, fs[3].Fail(io.EOF))
	require.NoError(t, fs[0].Set(1))
	require.NoError(t, fs[1].Fail(errLost))
	require.False(t, all.IsDone())
	require.NoError(t, fs[2].Set(1))
	requireOutcome(t, all, nil, errLost)
}

func TestWaitAll(t *testing.T) {
	got, err := future.WaitAll[int](t.Context())
	require.NoError(t, err)
	require.Empty(t, got)

	fs := pending[int](20)
	for i := range fs {
		go func() { _ = fs[len(fs)-1-i].Set(len(fs) - 1 - i) }()
	}
	got, err = future.WaitAll(t.Context(), fs...)
	require.NoError(t, err)
	require.Len(t, got, 20)
	for i, v := range got {
		require.Equal(t, i, v)
	}
}

// TestWaitAllExitsEarly checks that WaitAll returns at the first error, does not cancel the pending
// futures, and leaves no watcher registered with them.
func TestWaitAllExitsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := pending[int](4)
		ended := make(chan error)
		go func() {
			_, err := future.WaitAll(t.Context(), fs...)
			ended <- err
		}()
		synctest.Wait()
		require.NoError(t, fs[3].Set(1))
		synctest.Wait()
		require.NoError(t, fs[2].Fail(errLost))
		require.Equal(t, errLost, <-ended)
		require.Zero(t, fs[0].Watchers())
		require.False(t, fs[0].IsDone(), "it was not cancelled")

		require.NoError(t, fs[1].Fail(io.EOF))
		_, err := future.WaitAll(t.Context(), fs...)
		require.Equal(t, io.EOF, err, "the first error of the list")
	})
}

func TestWaitAllEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, ok := future.New[int](), future.Of(1)
		begin := time.Now()
		for name, wait := range map[string]func(context.Context) error{
			"WaitAll": func(ctx context.Context) error { _, err := future.WaitAll(ctx, ok, f, f); return err },
			"Await":   func(ctx context.Context) error { return future.Await(ctx, ok, f, f) },
			"Settle":  func(ctx context.Context) error { return future.Settle(ctx, ok, f, f) },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := wait(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.ErrorIs(t, err, future.ErrTimeout, name)
			cancel()
			require.Zero(t, f.Watchers(), name)
		}
		require.Equal(t, 3*time.Second, time.Since(begin))
	})
}

func TestDifferentTypes(t *testing.T) {
	number, text := future.New[int](), future.New[string]()
	go func() { _ = text.Set("x") }()
	go func() { _ = number.Set(1) }()
	require.NoError(t, future.Await(t.Context(), number, text))
	require.NoError(t, future.Settle(t.Context(), number, text))
	require.NoError(t, future.Await(t.Context()))
	require.NoError(t, future.Settle(t.Context()))

	bad := future.New[bool]()
	go func() { _ = bad.Fail(errLost) }()
	require.ErrorIs(t, future.Await(t.Context(), number, future.New[string](), bad), errLost)
}

// TestSettleWaitsForAll checks that Settle blocks until all futures are done although one has
// failed, and returns the first error in the order of the list.
func TestSettleWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, last := future.New[int](), future.New[string](), future.New[int]()
		ended := make(chan error, 1)
		go func() { ended <- future.Settle(t.Context(), first, second, last) }()
		early := errors.New("early")
		require.NoError(t, last.Fail(early))
		require.NoError(t, first.Set(1))
		synctest.Wait()
		require.Empty(t, ended)
		require.NoError(t, second.Fail(errLost))
		require.Equal(t, errLost, <-ended, "the first error of the list")
	})
}
