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

// The limit of a call ends its callContext with a *TimeoutError as the cause: for goroutines that
// wait for Done, for those that poll Err, and for derived contexts.
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

// callContext.Value does not check the deadline and creates no inner context. Nevertheless
// context.Cause of a derived context returns the *TimeoutError after the deadline.
func TestCallContextValue(t *testing.T) {
	parent := context.WithValue(t.Context(), valueKey{}, 7)
	ctx := (&call{begun: time.Now().Add(-time.Hour), limit: time.Minute}).withLimit(parent)
	defer ctx.finish()
	require.Equal(t, 7, ctx.Value(valueKey{}))
	require.Nil(t, ctx.inner)
	require.Equal(t, &TimeoutError{Limit: time.Minute}, context.Cause(context.WithValue(ctx, valueKey{}, 8)))
	require.Equal(t, 7, ctx.Value(valueKey{}))
}

// When the parent of a callContext is cancelled, the callContext ends with the parent's cause,
// whether a goroutine waits for it or not. A callContext of a call without a limit has no deadline.
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

// A callContext that was finished or cancelled has ended, with the first cause, whether a goroutine
// waited for Done before or not.
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

// The deadline of a callContext is the limit of the call or the deadline of the parent, whichever
// is earlier.
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

// WaitAll waits for a call that is being started and has no future yet, and returns the error of
// that call.
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

// WaitAll does not wait for a call whose start panics before the call has a future.
func TestWaitAllOfCallsThatPanic(t *testing.T) {
	require.NoError(t, WaitAll(t.Context(), func(ctx context.Context) error {
		require.Panics(t, func() { trackInScope(ctx, func() *Future[int] { panic("oh") }) })
		return nil
	}))
}

// Data with the number of data that the receiver takes while they are checked violate the protocol.
func TestNumberAgainWhileReceiving(t *testing.T) {
	h := joinHostile(t, 0, func(ctx context.Context, s *Stream[int, int]) error {
		if err := s.Send(1); err != nil {
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	call, err := victimStream.Open(t.Context(), h.group[0], "worker1")
	require.NoError(t, err)
	s := call.stream
	in, err := s.take()
	require.NoError(t, err)
	s.mu.Lock()
	queued, err := s.enqueue(in) // as after a check before the call of take
	s.mu.Unlock()
	if !queued {
		s.conn.agent.inMessages.drop(in)
	}
	require.ErrorIs(t, err, ErrProtocol)
	require.False(t, queued)
}
