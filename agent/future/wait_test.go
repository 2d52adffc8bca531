package future_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// waits counts calls of BeginWait and of its result.
type waits struct{ begun, ended int }

func (w *waits) BeginWait() func() {
	w.begun++
	return func() { w.ended++ }
}

// TestWaiter checks that the Waiter of a context is notified of the begin and the end of a wait
// that blocks, and not of one that returns at once.
func TestWaiter(t *testing.T) {
	for name, wait := range map[string]func(context.Context, *future.Future[int]) error{
		"Wait": func(ctx context.Context, f *future.Future[int]) error { _, err := f.Wait(ctx); return err },
		"WaitAll": func(ctx context.Context, f *future.Future[int]) error {
			_, err := future.WaitAll(ctx, f, f)
			return err
		},
		"Await":  func(ctx context.Context, f *future.Future[int]) error { return future.Await(ctx, f, f) },
		"Settle": func(ctx context.Context, f *future.Future[int]) error { return future.Settle(ctx, f, f) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &waits{}
				ctx, cancel := context.WithCancel(context.WithValue(t.Context(), future.WaiterKey{}, w))
				require.NoError(t, wait(ctx, future.Of(1)))
				require.Zero(t, *w, "f is done")

				f, done := future.New[int](), make(chan error)
				go func() { done <- wait(ctx, f) }()
				synctest.Wait()
				require.Equal(t, waits{begun: 1}, *w)
				require.NoError(t, f.Set(1))
				require.NoError(t, <-done)
				require.Equal(t, waits{1, 1}, *w)

				go func() { done <- wait(ctx, future.New[int]()) }()
				synctest.Wait()
				cancel()
				require.ErrorIs(t, <-done, context.Canceled)
				require.Equal(t, waits{2, 2}, *w)

				require.ErrorIs(t, wait(ctx, future.New[int]()), context.Canceled)
				require.NoError(t, wait(ctx, future.Of(1)), "a completed future takes precedence")
				require.Equal(t, waits{2, 2}, *w)
			})
		})
	}
}
