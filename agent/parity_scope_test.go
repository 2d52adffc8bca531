package agent_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func TestParityScopes(t *testing.T) {
	inSimulatedTime(t, "rpc/RpcTest.test_wait_all", serveCore, func(t require.TestingT, w worker) {
		begun := time.Now()
		var call, sum *agent.Future[[]any]
		require.NoError(t, agent.WaitAll(w.ctx, func(ctx context.Context) error {
			call = w.InvokeAsync(ctx, w.next(1), "my_sleep_func", 1.0)
			sum = w.OpAsync(ctx, w.next(1), "aten::add", full(1, 2, 2), 1)
			return nil
		}))
		require.Equal(t, time.Second, time.Since(begun), "the slower call is waited for")
		require.True(t, sum.IsDone())
		x, err := agent.One[*tensor.Tensor](sum.Result())
		require.NoError(t, err)
		equalTensor(t, full(2, 2, 2), x)
		require.True(t, call.IsDone())
		require.NoError(t, call.Err())
	})
	inOneProcess(t, "rpc/RpcTest.test_wait_all_multiple_call", func(t require.TestingT, w worker) {
		var calls []*agent.Future[[]any]
		require.NoError(t, agent.WaitAll(w.ctx, func(ctx context.Context) error {
			for i := range 20 {
				calls = append(calls, w.OpAsync(ctx, w.next(1), "aten::add", full(1, i, i), 1))
				sum, err := agent.One[*tensor.Tensor](w.Op(ctx, w.next(1), "aten::add", full(1, i, i), 1))
				require.NoError(t, err)
				equalTensor(t, full(2, i, i), sum)
			}
			return nil
		}))
		for i, call := range calls {
			require.True(t, call.IsDone())
			sum, err := agent.One[*tensor.Tensor](call.Result())
			require.NoError(t, err)
			equalTensor(t, full(2, i, i), sum)
		}
	})
	inSimulatedTime(t, "rpc/RpcTest.test_wait_all_timeout", serveCore, func(t require.TestingT, w worker) {
		begun := time.Now()
		err := agent.WaitAll(w.ctx, func(ctx context.Context) error {
			w.InvokeAsync(ctx, w.next(1), "my_sleep_func", 1.0, agent.WithTimeout(100*time.Millisecond))
			return nil
		})
		requireTimeout(t, err, "100 ms")
		require.Equal(t, 100*time.Millisecond, time.Since(begun))
	})
	inOneProcess(t, "rpc/RpcTest.test_wait_all_raise_in_user_func", func(t require.TestingT, w worker) {
		err := agent.WaitAll(w.ctx, func(ctx context.Context) error {
			w.InvokeAsync(ctx, w.next(1), "raise_func")
			w.InvokeAsync(ctx, w.next(1), "custom_raise_func")
			return nil
		})
		var remote *agent.RemoteError
		require.ErrorAs(t, err, &remote)
		require.ErrorContains(t, err, "raise_func on "+w.nextName()+": "+expectedErr, "the first that began")
	})
	inSimulatedTime(t, "rpc/RpcTest.test_wait_all_raise_in_body", serveCore, func(t require.TestingT, w worker) {
		begun := time.Now()
		raised := errors.New("Expected error")
		var call *agent.Future[[]any]
		err := agent.WaitAll(w.ctx, func(ctx context.Context) error {
			call = w.InvokeAsync(ctx, w.next(1), "my_sleep_func", 1.0)
			return raised
		})
		require.ErrorIs(t, err, raised)
		require.Equal(t, time.Second, time.Since(begun), "the calls are waited for all the same")
		require.True(t, call.IsDone())
		require.NoError(t, call.Err())
	})
	parity.Case(t, "rpc/RpcTest.test_wait_all_with_exception", func(t *testing.T) { waitAllOf(t, 10, 0) })
	parity.Case(t, "rpc/RpcTest.test_wait_all_with_partial_exception", func(t *testing.T) { waitAllOf(t, 1, 10) })
}

// waitAllOf waits, on all workers concurrently, with future.WaitAll for good calls that succeed and
// bad calls that fail. It requires the error of a failed call, and the values of the calls that
// succeed.
func waitAllOf(t *testing.T, bad, good int) {
	work := agent.NewFunc[string, int]("test.work")
	group := startGroup(t, world, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{work.Serve(func(_ context.Context, text string) (int, error) {
			if text != "" {
				return 0, errors.New(text)
			}
			return 1, nil
		})}
	})
	requireAll(t, group, func(a *agent.Agent) error {
		var calls []*agent.Future[int]
		for range good {
			calls = append(calls, work.Go(t.Context(), a, next(a), ""))
		}
		fine := calls
		for range bad {
			calls = append(calls, work.Go(t.Context(), a, next(a), "Expected error"))
		}
		_, err := future.WaitAll(t.Context(), calls...)
		var remote *agent.RemoteError
		require.ErrorAs(t, err, &remote)
		require.ErrorContains(t, err, "Expected error")
		values, err := future.WaitAll(t.Context(), fine...)
		return errors.Join(err, want(slices.Repeat([]int{1}, good), values))
	})
}
