package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

type valueKey struct{}

// The limit ends the context for goroutines that wait, for those that poll Err, and for derived
// contexts.
func TestCallContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := &TimeoutError{Limit: time.Minute}
		parent := context.WithValue(t.Context(), valueKey{}, 7)
		for name, wait := range map[string]func(ctx context.Context){
			"Done":  func(ctx context.Context) { <-ctx.Done() },
			"Err":   func(ctx context.Context) { <-time.NewTimer(time.Minute).C },
			"child": func(ctx context.Context) { child, stop := context.WithCancel(ctx); <-child.Done(); stop() },
		} {
			ctx := (&call{begun: time.Now(), limit: time.Minute}).withLimit(parent)
			require.NoError(t, ctx.Err(), name)
			require.NoError(t, context.Cause(ctx), name)
			require.Equal(t, 7, ctx.Value(valueKey{}), name)
			wait(ctx)
			require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded, name)
			require.Equal(t, over, context.Cause(ctx), name)
			require.Equal(t, 7, ctx.Value(valueKey{}), name)
			ctx.finish()
		}
	})
}

// Value does not check the deadline. The cause is found after it nevertheless.
func TestCallContextValue(t *testing.T) {
	parent := context.WithValue(t.Context(), valueKey{}, 7)
	ctx := (&call{begun: time.Now().Add(-time.Hour), limit: time.Minute}).withLimit(parent)
	defer ctx.finish()
	require.Equal(t, 7, ctx.Value(valueKey{}))
	require.Nil(t, ctx.inner)
	require.Equal(t, &TimeoutError{Limit: time.Minute}, context.Cause(context.WithValue(ctx, valueKey{}, 8)))
	require.Equal(t, 7, ctx.Value(valueKey{}))
}

// The parent ends the context with its cause, whether a goroutine waits or not. Without a limit
// nothing else ends it.
func TestCallContextOfCancelledParent(t *testing.T) {
	enough := errors.New("enough")
	for _, waits := range []bool{false, true} {
		parent, cancel := context.WithCancelCause(t.Context())
		ctx := (&call{begun: time.Now().Add(-time.Hour)}).withLimit(parent)
		_, timed := ctx.Deadline()
		require.False(t, timed)
		if waits {
			require.NotNil(t, ctx.Done())
		}
		require.NoError(t, ctx.Err())
		cancel(enough)
		<-ctx.Done()
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		require.Equal(t, enough, context.Cause(ctx))
		ctx.finish()
	}
}

// A context that has been finished or cancelled has ended, whether a goroutine waited before or not.
func TestCallContextEnds(t *testing.T) {
	enough := errors.New("enough")
	for _, waits := range []bool{false, true} {
		for _, end := range []struct {
			by    func(*callContext)
			cause error
		}{
			{(*callContext).finish, context.Canceled},
			{func(c *callContext) { c.cancel(enough) }, enough},
			{func(c *callContext) { c.cancel(enough); c.finish() }, enough},
		} {
			ctx := (&call{begun: time.Now(), limit: time.Hour}).withLimit(t.Context())
			if waits {
				require.NotNil(t, ctx.Done())
			}
			end.by(ctx)
			require.Equal(t, end.cause, context.Cause(ctx))
			require.ErrorIs(t, ctx.Err(), context.Canceled)
			<-ctx.Done()
			ctx.finish()
		}
	}
}

// The deadline is the earlier one of the limit and the parent.
func TestCallContextDeadline(t *testing.T) {
	now := time.Now()
	c := &call{begun: now, limit: time.Hour}
	for _, parent := range []time.Duration{0, time.Minute, 2 * time.Hour} {
		ctx, want := t.Context(), now.Add(time.Hour)
		if parent > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, now.Add(parent))
			defer cancel()
			want = now.Add(min(parent, time.Hour))
		}
		limited := c.withLimit(ctx)
		got, ok := limited.Deadline()
		require.True(t, ok)
		require.Equal(t, want, got)
		limited.finish()
	}
}

// WaitAll waits for a call that is being started and has no future yet.
func TestWaitAllOfCallsWithoutFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		begun, proceed, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- WaitAll(t.Context(), func(ctx context.Context) error {
				go trackInScope(ctx, func() *Future[int] {
					close(begun)
					<-proceed
					return future.Failed[int](failed)
				})
				<-begun
				return nil
			})
		}()
		synctest.Wait()
		require.Empty(t, ended)
		close(proceed)
		require.ErrorIs(t, <-ended, failed)
	})
}

// WaitAll does not wait for a call that panics before it has a future.
func TestWaitAllOfCallsThatPanic(t *testing.T) {
	require.NoError(t, WaitAll(t.Context(), func(ctx context.Context) error {
		require.Panics(t, func() { trackInScope(ctx, func() *Future[int] { panic("oh") }) })
		return nil
	}))
}
