package future_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// waits counts.
type waits struct{ begun, ended int }

func (w *waits) BeginWait() func() {
	w.begun++
	return func() { w.ended++ }
}

// Who wants to know of waits is told of those that there are.
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
				require.Zero(t, *w, "nothing to wait for")

				f, over := future.New[int](), make(chan error)
				go func() { over <- wait(ctx, f) }()
				synctest.Wait()
				require.Equal(t, waits{begun: 1}, *w)
				require.NoError(t, f.Set(1))
				require.NoError(t, <-over)
				require.Equal(t, waits{1, 1}, *w)

				go func() { over <- wait(ctx, future.New[int]()) }()
				synctest.Wait()
				cancel()
				require.ErrorIs(t, <-over, context.Canceled)
				require.Equal(t, waits{2, 2}, *w)

				require.ErrorIs(t, wait(ctx, future.New[int]()), context.Canceled)
				require.NoError(t, wait(ctx, future.Of(1)), "what is done is worth more")
				require.Equal(t, waits{2, 2}, *w)
			})
		})
	}
}
