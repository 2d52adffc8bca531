package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// A call that has left, and whose future nobody has yet, is waited for.
func TestWaitAllOfCallsWithoutFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		begun, left, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- WaitAll(t.Context(), func(ctx context.Context) error {
				go inScope(ctx, func() *Future[int] {
					close(begun)
					<-left
					return future.Failed[int](failed)
				})
				<-begun
				return nil
			})
		}()
		synctest.Wait()
		require.Empty(t, ended)
		close(left)
		require.ErrorIs(t, <-ended, failed)
	})
}

// A call that panics before it has a future keeps nobody waiting.
func TestWaitAllOfCallsThatPanic(t *testing.T) {
	require.NoError(t, WaitAll(t.Context(), func(ctx context.Context) error {
		require.Panics(t, func() { inScope(ctx, func() *Future[int] { panic("oh") }) })
		return nil
	}))
}
