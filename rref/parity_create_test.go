package rref_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// createdOp returns a script that adds x and y on the next worker, or on this one, and requires the
// sum: fetched from the next worker, or the local value.
func createdOp[T any](steps int, x, y any) script {
	return func(t require.TestingT, w worker) {
		f := rref.RemoteOp[T](w.ctx, w.Agent, w.next(steps), "aten::add", x, y)
		if steps == 0 {
			got, err := f.Local()
			requireSum(t, got, err, x, y)
			return
		}
		got, err := f.ToHere(w.ctx)
		requireSum(t, got, err, x, y)
	}
}

// createdSelf returns a script that calls my_function on this worker.
func createdSelf[T any](f functions[T], x, y, z any) script {
	return func(t require.TestingT, w worker) {
		got, err := rref.Remote(w.ctx, w.Agent, w.Self().To(), f.my, abc{x, y, z}).ToHere(w.ctx)
		requireSum(t, got, err, x, y, z)
	}
}

// severalRemotes returns a script that makes ten values on the next worker before it fetches the
// first: create makes one for the number n, which has the sum of terms.
func severalRemotes[T any](create func(w worker, n int) *rref.Ref[T], terms func(n int) []any) script {
	return func(t require.TestingT, w worker) {
		n := w.n
		var refs []*rref.Ref[T]
		var want [][]any
		for i := range 10 {
			n += i
			refs, want = append(refs, create(w, n)), append(want, terms(n))
		}
		for i, f := range refs {
			got, err := f.ToHere(w.ctx)
			requireSum(t, got, err, want[i]...)
		}
	}
}

// squares returns times tensors of ones, n by n.
func squares(times int) func(n int) []any {
	return func(n int) (all []any) {
		for range times {
			all = append(all, full(1, n, n))
		}
		return all
	}
}

func sparses(times int) func(int) []any {
	return func(int) (all []any) {
		for range times {
			all = append(all, buildSparse())
		}
		return all
	}
}

func severalOps[T any](terms func(n int) []any) script {
	return severalRemotes(func(w worker, n int) *rref.Ref[T] {
		return rref.RemoteOp[T](w.ctx, w.Agent, w.next(1), "aten::add", terms(n)...)
	}, terms)
}

// severalNamed gives the arguments of my_function by their names.
func severalNamed[T any](f functions[T], terms func(n int) []any) script {
	return severalRemotes(func(w worker, n int) *rref.Ref[T] {
		v := terms(n)
		return rref.Remote(w.ctx, w.Agent, w.next(1), f.my, abc{A: v[0], B: v[1], C: v[2]})
	}, terms)
}

func TestParityCreation(t *testing.T) {
	inProcesses(t, "rpc/RpcTest.test_builtin_remote_ret", createdOp[*tensor.Tensor](1, ones(), ones()))
	inOneProcess(t, "rpc/RpcTest.test_builtin_remote_self", createdOp[*tensor.Tensor](0, ones(), ones()))
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_builtin_remote_ret_sparse", createdOp[*tensor.Sparse](1, buildSparse(), buildSparse()))
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_builtin_remote_self_sparse", createdOp[*tensor.Sparse](0, buildSparse(), buildSparse()))
	inOneProcess(t, "rpc/RpcTest.test_self_py_udf_remote", createdSelf(dense, ones(), 1, 3))
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_self_py_udf_remote_sparse", createdSelf(sparse, buildSparse(), buildSparse(), buildSparse()))
	inOneProcess(t, "rpc/RpcTest.test_multi_builtin_remote_ret", severalOps[*tensor.Tensor](squares(2)))
	inProcesses(t, "rpc/TensorPipeAgentRpcTest.test_multi_builtin_remote_ret_sparse", severalOps[*tensor.Sparse](sparses(2)))
	inOneProcess(t, "rpc/RpcTest.test_multi_py_udf_remote", severalNamed(dense, squares(3)))
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_multi_py_udf_remote_sparse", severalNamed(sparse, sparses(3)))
	inProcesses(t, "rpc/RpcTest.test_py_udf_remote", func(t require.TestingT, w worker) {
		f := rref.Remote(w.ctx, w.Agent, w.next(1), numbers.my, abc{A: w.n, B: w.n + 1, C: w.n + 2})
		n, err := f.ToHere(w.ctx)
		requireSum(t, n, err, w.n, w.n+1, w.n+2)
		named := rref.RemoteInvoke[int](w.ctx, w.Agent, w.next(1), numbers.my.Name(), agent.Named{"A": w.n, "B": w.n + 1, "C": w.n + 2})
		n, err = named.ToHere(w.ctx)
		requireSum(t, n, err, w.n, w.n+1, w.n+2)
	})
	inProcesses(t, "rpc/RpcTest.test_remote_with_exception", func(t require.TestingT, w worker) {
		for _, to := range []agent.To{w.next(1), w.Self().To()} {
			_, err := rref.Remote(w.ctx, w.Agent, to, raiseFunc, agent.None{}).ToHere(w.ctx)
			require.ErrorContains(t, err, expectedErr)
			require.NotErrorIs(t, err, rref.ErrCreation)
		}
		_, err := rref.RemoteInvoke[int](w.ctx, w.Agent, w.Self().To(), noResult.Name(), 10).ToHere(w.ctx)
		require.ErrorIs(t, err, agent.ErrArguments)
		require.ErrorContains(t, err, "the function takes no arguments, got (int)")
	})
	inOneProcess(t, "rpc/RpcTest.test_remote_throw", func(t require.TestingT, w worker) {
		_, err := rref.Remote(w.ctx, w.Agent, w.next(1), raiseOrInc, full(1, 2)).ToHere(w.ctx)
		require.ErrorContains(t, err, expectedErr)
	})
	parity.Case(t, "rpc/RpcTest.test_world_size_one", func(t *testing.T) { worldOfOne(t, dense, ones(), ones()) })
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_world_size_one_sparse", func(t *testing.T) { worldOfOne(t, sparse, buildSparse(), buildSparse()) })
	inOneProcess(t, "rpc/RpcTest.test_send_to_rank", sentToRank[*tensor.Tensor](ones(), 1))
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_send_to_rank_sparse", sentToRank[*tensor.Sparse](buildSparse(), buildSparse()))
}

// worldOfOne calls my_tensor_function in the three modes on the only worker of a group.
func worldOfOne[T any](t *testing.T, f functions[T], x, y any) {
	g := start(t, 1, func(rank int, c *agent.Config, o *rref.Options) {
		serveParity(rank, c, o)
		c.Name = "me"
	})
	got, err := f.two.Call(t.Context(), g.agents[0], "me", [2]any{x, y})
	requireSum(t, got, err, x, x)
	got, err = f.two.Go(t.Context(), g.agents[0], "me", [2]any{x, y}).Wait(t.Context())
	requireSum(t, got, err, x, x)
	kept := rref.Remote(t.Context(), g.agents[0], "me", f.two, [2]any{x, y})
	got, err = kept.ToHere(t.Context())
	requireSum(t, got, err, x, x)
	require.Equal(t, "me", kept.OwnerName())
	g.finish()
}

// sentToRank adds x and y in the three modes on the next worker, given in each form of a destination,
// and on ranks that no worker has.
func sentToRank[T any](x, y any) script {
	modes := map[string]func(w worker, to agent.To) (T, error){
		"blocking": func(w worker, to agent.To) (T, error) { return agent.One[T](w.Op(w.ctx, to, "aten::add", x, y)) },
		"asynchronous": func(w worker, to agent.To) (T, error) {
			return agent.One[T](w.OpAsync(w.ctx, to, "aten::add", x, y).Wait(w.ctx))
		},
		"remote": func(w worker, to agent.To) (T, error) {
			return rref.RemoteOp[T](w.ctx, w.Agent, to, "aten::add", x, y).ToHere(w.ctx)
		},
	}
	return func(t require.TestingT, w worker) {
		rank := w.n % parityWorld
		info := agent.WorkerInfo{Name: string(w.next(1)), Rank: rank}
		for name, mode := range modes {
			for _, to := range []agent.To{agent.Rank(rank), agent.To(info.Name), info.To()} {
				got, err := mode(w, to)
				requireSum(t, got, err, x, y)
			}
			for _, rank := range []int{-1, parityWorld + 1} {
				_, err := mode(w, agent.Rank(rank))
				require.ErrorIs(t, err, agent.ErrNoWorker, name)
				if name == "remote" {
					require.ErrorIs(t, err, rref.ErrCreation)
				}
			}
		}
	}
}

func TestParityCreated(t *testing.T) {
	inSimulatedTime(t, "rpc/RpcTest.test_rref_get_future", nil, func(t require.TestingT, w worker) {
		if w.Self().Rank != 0 {
			return
		}
		created := func(get func() *agent.Future[agent.None], fetch func() error) {
			require.NoError(t, fetch())
			_, err := get().Wait(w.ctx)
			require.NoError(t, err)
			require.True(t, get().IsDone())
		}
		op := rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, "worker1", "aten::add", integers([]int64{1}), 1)
		created(op.Created, func() error { _, err := op.ToHere(w.ctx); return err })
		f := rref.Remote(w.ctx, w.Agent, "worker1", fooAdd, agent.None{})
		created(f.Created, func() error { _, err := f.ToHere(w.ctx); return err })
		byName := rref.RemoteInvoke[*tensor.Tensor](w.ctx, w.Agent, "worker1", "my_script_func", integers([]int64{1}))
		created(byName.Created, func() error { _, err := byName.ToHere(w.ctx); return err })
	})
	inSimulatedTime(t, "rpc/RpcTest.test_rref_timeout", nil, func(t require.TestingT, w worker) {
		if w.Self().Rank != 0 {
			return
		}
		f := rref.Remote(w.ctx, w.Agent, w.next(1), sleepFunc, 2, agent.WithTimeout(10*time.Millisecond))
		_, err := f.Created().Wait(w.ctx)
		requireTimeout(t, err, "10 ms")
		_, err = f.ToHere(w.ctx)
		requireCreation(t, err)
	})
	parity.Case(t, "rpc/RpcTest.test_pg_init_no_rpc_init", func(t *testing.T) {
		closed := start(t, 1, nil)
		a := closed.agents[0]
		closed.finish()
		for want, a := range map[error]*agent.Agent{rref.ErrNoAgent: nil, rref.ErrClosed: a} {
			own := rref.Own(a, full(1, 3, 4))
			_, local := own.Local()
			_, fetched := own.ToHere(t.Context())
			_, typ := own.Type(t.Context())
			_, created := own.Created().Wait(t.Context())
			for _, err := range []error{local, fetched, typ, created} {
				require.ErrorIs(t, err, want)
				if want == rref.ErrNoAgent {
					require.Contains(t, torch.Error(err), "Current RPC agent is not set! Did you initialize the RPC framework")
				}
			}
			require.NoError(t, own.Release(t.Context()))
		}
		withoutAgent(t)
	})
}

// withoutAgent checks that no method of a reference panics that was made without an agent.
func withoutAgent(t *testing.T) {
	for _, f := range []*rref.Ref[*myClass]{
		rref.Own[*myClass](nil, &myClass{}),
		rref.Remote(t.Context(), nil, "worker1", newMyClass, classArgs{}),
		rref.RemoteInvoke[*myClass](t.Context(), nil, "worker1", newMyClass.Name()),
	} {
		_, err := getValue.Call(t.Context(), f, agent.None{})
		require.ErrorIs(t, err, rref.ErrNoAgent)
		_, err = getValue.Go(t.Context(), f, agent.None{}).Wait(t.Context())
		require.ErrorIs(t, err, rref.ErrNoAgent)
		_, err = getValue.Remote(t.Context(), f, agent.None{}).ToHere(t.Context())
		require.ErrorIs(t, err, rref.ErrNoAgent)
		_, err = f.TypeAsync(t.Context()).Wait(t.Context())
		require.ErrorIs(t, err, rref.ErrNoAgent)
		require.Zero(t, f.Owner())
		require.Empty(t, f.OwnerName())
		require.False(t, f.IsOwner() || f.IsConfirmed())
		require.Zero(t, f.Label())
		require.Zero(t, f.ForkLabel())
		require.Equal(t, "nil rref", f.String())
		require.False(t, f.Equal(rref.Own[*myClass](nil, nil)))
	}
}

// requireTimeout requires that err is that of a call, or of a creation, which has exceeded its limit.
func requireTimeout(t require.TestingT, err error, limit string) {
	require.ErrorIs(t, err, agent.ErrTimeout)
	if created := (*rref.CreationError)(nil); errors.As(err, &created) {
		err = created.Err // a future of PyTorch fails with the error of the call
	}
	require.Contains(t, torch.Error(err), "RPC ran for more than set timeout ("+limit+") and will now be marked with an error")
}

// requireCreation requires that err is that of a reference which may have no value.
func requireCreation(t require.TestingT, err error) {
	require.ErrorIs(t, err, rref.ErrCreation)
	var created *rref.CreationError
	require.ErrorAs(t, err, &created)
	require.Contains(t, torch.Error(err), "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does not exist.")
}
