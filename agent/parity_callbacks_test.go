package agent_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// callTwo calls the worker of the next rank, which adds two w.n by w.n tensors of ones. It returns
// the future of the sum, a tensor of twos, without waiting.
func (w worker) callTwo() *agent.Future[*tensor.Tensor] {
	return opAsync(w.ctx, w.Agent, w.next(1), "aten::add", full(1, w.n, w.n), full(1, w.n, w.n))
}

// square returns a new w.n by w.n tensor whose elements are value.
func (w worker) square(value float32) *tensor.Tensor { return full(value, w.n, w.n) }

func requireValue(t require.TestingT, w worker, f *agent.Future[*tensor.Tensor], want *tensor.Tensor) {
	got, err := f.Wait(w.ctx)
	require.NoError(t, err)
	equalTensor(t, want, got)
}

// plusIf returns a callback that returns the value of a future plus n. The callback fails with the
// error of the future, or if the value does not equal want.
func plusIf(want *tensor.Tensor, n int) func(*agent.Future[*tensor.Tensor]) (*tensor.Tensor, error) {
	return func(f *agent.Future[*tensor.Tensor]) (*tensor.Tensor, error) {
		x, err := f.Result()
		if err != nil {
			return nil, err
		}
		same, err := tensor.Equal(want, x)
		if err != nil {
			return nil, err
		}
		if !same {
			return nil, fmt.Errorf("the callback got %v, whose values are not those of %v", x, want)
		}
		return compute("aten::add", x, n)
	}
}

func TestParityCallbacks(t *testing.T) {
	inProcesses(t, "rpc/RpcTest.test_callback_simple", func(t require.TestingT, w worker) {
		byCallback := future.New[*tensor.Tensor]()
		f := w.callTwo()
		require.NoError(t, f.OnDone(func(f *agent.Future[*tensor.Tensor]) {
			x, err := plusIf(w.square(2), 1)(f)
			if err != nil {
				_ = byCallback.Fail(err)
				return
			}
			_ = byCallback.Set(x)
		}))
		requireValue(t, w, f, w.square(2))
		requireValue(t, w, byCallback, w.square(3))
		requireValue(t, w, f, w.square(2))
	})
	inOneProcess(t, "rpc/RpcTest.test_callback_multi", func(t require.TestingT, w worker) {
		f := w.callTwo()
		var more []*agent.Future[*tensor.Tensor]
		for i := range 10 {
			more = append(more, future.Then(f, plusIf(w.square(2), i)))
		}
		requireValue(t, w, f, w.square(2))
		for i, f := range more {
			requireValue(t, w, f, w.square(float32(2+i)))
		}
		requireValue(t, w, f, w.square(2))
	})
	inOneProcess(t, "rpc/RpcTest.test_callback_chain", func(t require.TestingT, w worker) {
		f := opAsync(w.ctx, w.Agent, w.next(1), "aten::add", w.square(1), 1)
		for i := range 20 {
			f = future.Then(f, plusIf(w.square(float32(2+i)), 1))
		}
		requireValue(t, w, f, w.square(22))
	})
	inOneProcess(t, "rpc/RpcTest.test_callback_in_rpc", requireSum(addUseFuture, inSync, 1, 2, 4))
	inOneProcess(t, "rpc/RpcTest.test_callback_with_ret", func(t require.TestingT, w worker) {
		addOne := func(x *tensor.Tensor) *agent.Future[*tensor.Tensor] {
			return opAsync(w.ctx, w.Agent, w.next(1), "aten::add", x, 1)
		}
		blocks := func(f *agent.Future[*tensor.Tensor]) (*tensor.Tensor, error) {
			x, err := f.Result()
			if err != nil {
				return nil, err
			}
			return future.Then(addOne(x), plusIf(full(3, 2, 2), 1)).Wait(w.ctx)
		}
		requireValue(t, w, future.Then(addOne(full(1, 2, 2)), blocks), full(4, 2, 2))
	})
	inProcesses(t, "rpc/RpcTest.test_callback_with_error", func(t require.TestingT, w worker) {
		var first error
		f := future.Then(w.InvokeAsync(w.ctx, w.next(1), "raise_func"), func(f *agent.Future[[]any]) (int, error) {
			first = f.Err()
			return 0, errors.New("Another expected error")
		})
		_, err := f.Wait(w.ctx)
		require.EqualError(t, err, "Another expected error")
		require.ErrorContains(t, first, expectedErr)
	})
	inOneProcess(t, "rpc/RpcTest.test_callback_none", func(t require.TestingT, w worker) {
		f := w.InvokeAsync(w.ctx, w.next(1), "raise_func")
		require.ErrorIs(t, f.OnDone(nil), future.ErrNilCallback)
		_, err := future.Then[[]any, int](f, nil).Wait(w.ctx)
		require.ErrorIs(t, err, future.ErrNilCallback)
		_, err = f.Wait(w.ctx)
		require.ErrorContains(t, err, expectedErr, "the call goes on")
	})
	inOneProcess(t, "rpc/RpcTest.test_add_done_callback", func(t require.TestingT, w worker) {
		var set atomic.Bool
		f := w.callTwo()
		require.NoError(t, f.OnDone(func(f *agent.Future[*tensor.Tensor]) { set.Store(f.Err() == nil) }))
		then := future.Then(f, func(*agent.Future[*tensor.Tensor]) (bool, error) { return set.Load(), nil })
		requireValue(t, w, f, w.square(2))
		before, err := then.Wait(w.ctx)
		require.NoError(t, err)
		require.True(t, before, "callbacks run in order")
		requireValue(t, w, f, w.square(2))
	})
	inOneProcess(t, "rpc/RpcTest.test_future_in_rpc", requireSum(setResult, inSync, 1, 2, 4))
	inOneProcess(t, "rpc/RpcTest.test_future_nested_callback", requireSum(nestedCallback, inSync, 1, 2, 4))
}
