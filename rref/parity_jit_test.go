package rref_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// scriptArgs is the argument of a function that PyTorch compiles: it calls the worker To, with a limit
// if Timeout is not nil.
type scriptArgs struct {
	To      string
	Timeout *time.Duration
}

// fetchArgs is the argument of rref_to_here_with_timeout.
type fetchArgs struct {
	Ref     *rref.Ref[*tensor.Tensor]
	Timeout time.Duration
}

var (
	callAsync     = agent.NewFunc[scriptArgs, *tensor.Tensor]("rpc_async_call")
	createAndHere = agent.NewFunc[scriptArgs, *tensor.Tensor]("rref_to_here_of_new")
	shareNew      = agent.NewFunc[scriptArgs, *tensor.Tensor]("rpc_async_with_rref_arg")
	fetchWithin   = agent.NewFunc[fetchArgs, *tensor.Tensor]("rref_to_here_with_timeout")
)

// beginCall calls two_args_two_kwargs by its name on v.To, and returns the future.
func beginCall(ctx context.Context, a *agent.Agent, v scriptArgs) *agent.Future[[]any] {
	pair := func(n int64) *tensor.Tensor { return integers([]int64{n, n}, 2) }
	args := []any{agent.Named{"FirstArg": pair(1), "SecondArg": pair(2), "FirstKwarg": pair(2), "SecondKwarg": pair(3)}}
	if v.Timeout != nil {
		args = append(args, agent.WithTimeout(*v.Timeout))
	}
	return a.InvokeAsync(ctx, agent.To(v.To), fourArgs.Name(), args...)
}

// newOnes makes 1+1 on v.To and waits until the creation has succeeded or failed.
func newOnes(ctx context.Context, v scriptArgs) *rref.Ref[*tensor.Tensor] {
	f := addingOnes()(worker{Agent: agent.FromContext(ctx), ctx: ctx}, agent.To(v.To))
	_, _ = f.Created().Wait(ctx)
	return f
}

// servedHandlers returns the functions that make calls of their own, for the worker that calls them.
func servedHandlers() agent.Funcs {
	return agent.Funcs{
		callAsync.Serve(func(ctx context.Context, v scriptArgs) (*tensor.Tensor, error) {
			return agent.One[*tensor.Tensor](beginCall(ctx, agent.FromContext(ctx), v).Wait(ctx))
		}),
		createAndHere.Serve(func(ctx context.Context, v scriptArgs) (*tensor.Tensor, error) { return newOnes(ctx, v).ToHere(ctx) }),
		shareNew.Serve(func(ctx context.Context, v scriptArgs) (*tensor.Tensor, error) {
			later := agent.FromContext(ctx).InvokeAsync(ctx, agent.To(v.To), "rref_to_here", newOnes(ctx, v))
			return agent.One[*tensor.Tensor](later.Wait(ctx))
		}),
		fetchWithin.Serve(func(ctx context.Context, v fetchArgs) (*tensor.Tensor, error) {
			return v.Ref.ToHere(ctx, agent.WithTimeout(v.Timeout))
		}),
	}
}

// atHandler calls f on the worker w itself, without a limit: its handler calls the next worker, with
// the limit of the last argument if there is one.
func atHandler(w worker, f agent.Func[scriptArgs, *tensor.Tensor], limit ...time.Duration) (*tensor.Tensor, error) {
	v := scriptArgs{To: string(w.next(1))}
	if len(limit) > 0 {
		v.Timeout = &limit[0]
	}
	return f.Call(w.ctx, w.Agent, w.Self().To(), v, agent.WithTimeout(0))
}

// limitedCalls makes calls with limits that are too short, with a default limit that is, and without a
// limit.
func limitedCalls(t *testing.T, w worker, call func(limit ...time.Duration) (*tensor.Tensor, error)) {
	_, err := call(500 * time.Millisecond)
	requireTimeout(t, err, "500 ms")
	require.NoError(t, w.SetDefaultTimeout(time.Millisecond))
	_, err = call()
	requireTimeout(t, err, "1 ms")
	x, err := call(0)
	require.NoError(t, err)
	requireEqual(t, integers([]int64{8, 8}, 2), x)
	require.NoError(t, w.SetDefaultTimeout(time.Minute))
}

func TestParityHandlers(t *testing.T) {
	late := faults{delay: map[string]time.Duration{"SCRIPT_CALL": 1500 * time.Millisecond}}.rules(t)
	dropping := append(faults{fail: []string{"SCRIPT_REMOTE_CALL"}}.rules(t), faulty.Rule{Types: []string{agent.TypeInvoke}})
	slow := faults{delay: map[string]time.Duration{"SCRIPT_RREF_FETCH_CALL": time.Second}}.rules(t)
	withFaults(t, "jit/RpcFaulty.test_timeout_in_torchscript_function", late, func(t *testing.T, _ *group, w worker, _ []*faulty.Faulty) {
		limitedCalls(t, w, func(limit ...time.Duration) (*tensor.Tensor, error) { return atHandler(w, callAsync, limit...) })
	})
	withFaults(t, "jit/RpcFaulty.test_timeout_in_python", late, func(t *testing.T, _ *group, w worker, _ []*faulty.Faulty) {
		limitedCalls(t, w, func(limit ...time.Duration) (*tensor.Tensor, error) {
			v := scriptArgs{To: string(w.next(1))}
			if len(limit) > 0 {
				v.Timeout = &limit[0]
			}
			return agent.One[*tensor.Tensor](beginCall(w.ctx, w.Agent, v).Wait(w.ctx))
		})
	})
	withFaults(t, "jit/RpcFaulty.test_remote_timeout_to_here_in_jit", dropping, func(t *testing.T, _ *group, w worker, _ []*faulty.Faulty) {
		_, err := atHandler(w, createAndHere)
		requireCreation(t, err)
	})
	withFaults(t, "jit/RpcFaulty.test_rref_timeout_pickle_in_jit", dropping, func(t *testing.T, _ *group, w worker, faults []*faulty.Faulty) {
		_, err := atHandler(w, shareNew)
		requireCreation(t, err)
		require.Equal(t, []int{0, 1, 0}, taken(faults[0]), "the reference is not sent")
	})
	withFaults(t, "jit/RpcFaulty.test_rref_timeout_pickle_script_func", dropping, func(t *testing.T, _ *group, w worker, faults []*faulty.Faulty) {
		f := addingOnes()(w, w.next(1))
		_, err := f.Created().Wait(w.ctx)
		requireCreation(t, err)
		_, err = w.Invoke(w.ctx, w.next(1), "rref_to_here", f)
		requireCreation(t, err)
		require.Equal(t, []int{0, 1, 0}, taken(faults[0]), "the reference is not sent")
	})
	withFaults(t, "jit/RpcFaulty.test_rref_to_here_timeout_in_jit", slow, func(t *testing.T, _ *group, w worker, _ []*faulty.Faulty) {
		f := addingOnes()(w, w.next(1))
		_, err := fetchWithin.Call(w.ctx, w.Agent, w.Self().To(), fetchArgs{f, 10 * time.Millisecond})
		requireTimeout(t, err, "10 ms")
		x, err := fetchWithin.Call(w.ctx, w.Agent, w.Self().To(), fetchArgs{f, 100 * time.Second})
		require.NoError(t, err)
		requireEqual(t, integers([]int64{2}), x)
	})
}
