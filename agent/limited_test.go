package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type valueKey struct{}

// The limit holds for who waits, for who looks, and for contexts made of this one.
func TestLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := &TimeoutError{Limit: time.Minute}
		parent := context.WithValue(t.Context(), valueKey{}, 7)
		for name, wait := range map[string]func(ctx context.Context){
			"Done":  func(ctx context.Context) { <-ctx.Done() },
			"Err":   func(ctx context.Context) { <-time.NewTimer(time.Minute).C },
			"child": func(ctx context.Context) { child, stop := context.WithCancel(ctx); <-child.Done(); stop() },
		} {
			ctx := &limited{Context: parent, call: &call{begun: time.Now(), limit: time.Minute}}
			require.NoError(t, ctx.Err(), name)
			require.NoError(t, context.Cause(ctx), name)
			require.Equal(t, 7, ctx.Value(valueKey{}), name)
			wait(ctx)
			require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded, name)
			require.Equal(t, over, context.Cause(ctx), name)
			require.Equal(t, 7, ctx.Value(valueKey{}), name)
			ctx.release()
		}
	})
}

// A context that ends ends it, with its cause, whether anybody waits or not; a call
// without a limit has no other end.
func TestLimitedByItsContext(t *testing.T) {
	enough := errors.New("enough")
	for _, waits := range []bool{false, true} {
		parent, cancel := context.WithCancelCause(t.Context())
		ctx := &limited{Context: parent, call: &call{begun: time.Now().Add(-time.Hour)}}
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
		ctx.release()
	}
}
