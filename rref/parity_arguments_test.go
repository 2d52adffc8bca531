package rref_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// ownAsCallArg passes a reference to a value of this worker in two calls of the worker that is steps
// further.
func ownAsCallArg[T any](f functions[T], steps int, x, y, z any) script {
	return func(t require.TestingT, w worker) {
		kept := rref.Remote(w.ctx, w.Agent, w.Self().To(), f.my, abc{x, y, z})
		require.True(t, kept.IsOwner())
		later := f.addRef.Go(w.ctx, w.Agent, w.next(steps), refAndValue[T]{kept, x})
		both, err := sum[any](x, y)
		require.NoError(t, err)
		got, err := f.addRef.Call(w.ctx, w.Agent, w.next(steps), refAndValue[T]{kept, both})
		requireSum(t, got, err, x, y, z, x, y)
		got, err = later.Wait(w.ctx)
		requireSum(t, got, err, x, y, z, x)
	}
}

// ownAsRemoteArg passes a reference to a value of this worker to the function that makes another value
// on the worker that is steps further.
func ownAsRemoteArg[T any](f functions[T], steps int, x, y, z any) script {
	return func(t require.TestingT, w worker) {
		kept := rref.Remote(w.ctx, w.Agent, w.Self().To(), f.my, abc{x, y, z})
		require.True(t, kept.IsOwner())
		result := rref.Remote(w.ctx, w.Agent, w.next(steps), f.addRef, refAndValue[T]{kept, x})
		require.Equal(t, steps == 0, result.IsOwner())
		got, err := result.ToHere(w.ctx)
		requireSum(t, got, err, x, y, z, x)
	}
}

// TestParityOwnArguments passes references to values of this worker to the next worker, and to this
// one.
func TestParityOwnArguments(t *testing.T) {
	s := buildSparse()
	inOneProcess(t, "rpc/RpcTest.test_self_remote_rref_as_rpc_arg", ownAsCallArg(dense, 1, ones(), 1, 3))
	inOneProcess(t, "rpc/RpcTest.test_self_remote_rref_as_self_rpc_arg", ownAsCallArg(dense, 0, ones(), 1, 3))
	inProcesses(t, "rpc/RpcTest.test_self_remote_rref_as_remote_arg", ownAsRemoteArg(dense, 1, ones(), 1, 3))
	inOneProcess(t, "rpc/RpcTest.test_self_remote_rref_as_self_remote_arg", ownAsRemoteArg(dense, 0, ones(), 1, 3))
	inProcesses(t, "rpc/TensorPipeAgentRpcTest.test_self_remote_rref_as_rpc_arg_sparse", ownAsCallArg(sparse, 1, s, s, s))
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_self_remote_rref_as_self_rpc_arg_sparse", ownAsCallArg(sparse, 0, s, s, s))
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_self_remote_rref_as_remote_arg_sparse", ownAsRemoteArg(sparse, 1, s, s, s))
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_self_remote_rref_as_self_remote_arg_sparse", ownAsRemoteArg(sparse, 0, s, s, s))
}

// remoteArgs makes two values on the next worker by create, and passes their references to the
// function that adds them, as use does. The sum is that of terms.
func remoteArgs[T any](f functions[T], create func(w worker, i int) *rref.Ref[T], use func(w worker, refs [2]*rref.Ref[T]) (T, error), terms ...any) script {
	return func(t require.TestingT, w worker) {
		a, b := create(w, 0), create(w, 1)
		require.False(t, a.IsOwner() || b.IsOwner())
		got, err := use(w, [2]*rref.Ref[T]{a, b})
		requireSum(t, got, err, terms...)
	}
}

// opArgs has operators make the values, each of two of the operands, and passes them to the
// owner, which keeps the result.
func opArgs[T any](f functions[T], operands ...any) script {
	return remoteArgs(f, func(w worker, i int) *rref.Ref[T] {
		return rref.RemoteOp[T](w.ctx, w.Agent, w.next(1), "aten::add", operands[2*i:2*i+2]...)
	}, func(w worker, refs [2]*rref.Ref[T]) (T, error) {
		return rref.Remote(w.ctx, w.Agent, w.next(1), f.addRefs, refs).ToHere(w.ctx)
	}, operands...)
}

// functionArgs has my_function make the values, each of three of the operands.
func functionArgs[T any](f functions[T], use func(w worker, refs [2]*rref.Ref[T]) (T, error), operands ...any) script {
	return remoteArgs(f, func(w worker, i int) *rref.Ref[T] {
		v := operands[3*i:]
		return rref.Remote(w.ctx, w.Agent, w.next(1), f.my, abc{v[0], v[1], v[2]})
	}, use, operands...)
}

// shareWithUser has a third worker add the values, which keeps the result.
func shareWithUser[T any](f functions[T]) func(w worker, refs [2]*rref.Ref[T]) (T, error) {
	return func(w worker, refs [2]*rref.Ref[T]) (T, error) {
		return rref.Remote(w.ctx, w.Agent, w.next(2), f.addRefs, refs).ToHere(w.ctx)
	}
}

// callOwner calls the owner, which adds the values.
func callOwner[T any](f functions[T]) func(w worker, refs [2]*rref.Ref[T]) (T, error) {
	return func(w worker, refs [2]*rref.Ref[T]) (T, error) {
		return f.addRefs.Call(w.ctx, w.Agent, w.next(1), refs)
	}
}

// TestParityArguments passes references to values of the next worker to their owner, and to a third
// worker.
func TestParityArguments(t *testing.T) {
	s := buildSparse()
	inOneProcess(t, "rpc/RpcTest.test_py_rref_args", opArgs(dense, ones(), 1, ones(), 2))
	inProcesses(t, "rpc/RpcTest.test_py_rref_args_user_share", functionArgs(dense, shareWithUser(dense), ones(), 1, 2, ones(), 3, 4))
	inOneProcess(t, "rpc/RpcTest.test_py_rpc_rref_args", functionArgs(dense, callOwner(dense), ones(), 1, 2, ones(), 3, 4))
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_py_rref_args_sparse", opArgs(sparse, s, s, s, s))
	inProcesses(t, "rpc/TensorPipeAgentRpcTest.test_py_rref_args_user_share_sparse", functionArgs(sparse, shareWithUser(sparse), s, s, s, s, s, s))
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_py_rpc_rref_args_sparse", functionArgs(sparse, callOwner(sparse), s, s, s, s, s, s))
	inOneProcess(t, "rpc/RpcTest.test_remote_same_worker", func(t require.TestingT, w worker) {
		square := full(1, w.n, w.n)
		refs := [2]*rref.Ref[*tensor.Tensor]{}
		for i, n := range []int{2, 1} {
			refs[i] = rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", square, n)
		}
		got, err := rref.Remote(w.ctx, w.Agent, w.next(1), dense.addRefs, refs).ToHere(w.ctx)
		requireSum(t, got, err, square, square, 3)
	})
	inProcesses(t, "rpc/RpcTest.test_pass_local_rrefs", func(t require.TestingT, w worker) {
		args := refAndValue[int]{rref.Own(w.Agent, 40), 50}
		n, err := numbers.addRef.Call(w.ctx, w.Agent, w.next(1), args)
		requireSum(t, n, err, 90)
		n, err = numbers.addRef.Go(w.ctx, w.Agent, w.next(1), args).Wait(w.ctx)
		requireSum(t, n, err, 90)
		n, err = rref.Remote(w.ctx, w.Agent, w.next(1), numbers.addRef, args).ToHere(w.ctx)
		requireSum(t, n, err, 90)
	})
	confirmed := func(check func(w worker, f *rref.Ref[*tensor.Tensor]) (bool, error)) script {
		return func(t require.TestingT, w worker) {
			f := rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(2), "aten::add", full(0, 2, 2), 1)
			ok, err := check(w, f)
			require.NoError(t, err)
			require.True(t, ok)
		}
	}
	inOneProcess(t, "rpc/RpcTest.test_user_rrefs_confirmed", confirmed(func(w worker, f *rref.Ref[*tensor.Tensor]) (bool, error) {
		return isConfirmed.Call(w.ctx, w.Agent, w.next(1), f)
	}))
	inOneProcess(t, "rpc/RpcTest.test_user_rrefs_confirmed_remote", confirmed(func(w worker, f *rref.Ref[*tensor.Tensor]) (bool, error) {
		return rref.Remote(w.ctx, w.Agent, w.next(1), isConfirmed, f).ToHere(w.ctx)
	}))
}

// nestedRemote has the next worker keep the value that it has fetched from the worker after it.
func nestedRemote[T any](f functions[T], terms ...any) script {
	return func(t require.TestingT, w worker) {
		got, err := rref.Remote(w.ctx, w.Agent, w.next(1), f.nested, string(w.next(2))).ToHere(w.ctx)
		requireSum(t, got, err, terms...)
	}
}

// nestedRefs has the next worker keep a list of two references to values of the worker after it, times
// times, before the first list is fetched.
func nestedRefs[T any](f functions[T], times int, first, second []any) script {
	return func(t require.TestingT, w worker) {
		var all []*rref.Ref[[]*rref.Ref[T]]
		for range times {
			all = append(all, rref.Remote(w.ctx, w.Agent, w.next(1), f.nestedRefs, string(w.next(2))))
		}
		for _, list := range all {
			refs, err := list.ToHere(w.ctx)
			require.NoError(t, err)
			require.Len(t, refs, 2)
			for i, terms := range [][]any{first, second} {
				require.Equal(t, string(w.next(2)), refs[i].OwnerName())
				got, err := refs[i].ToHere(w.ctx)
				requireSum(t, got, err, terms...)
			}
		}
	}
}

func TestParityNested(t *testing.T) {
	s := []any{buildSparse(), buildSparse()}
	inProcesses(t, "rpc/RpcTest.test_nested_remote", nestedRemote(dense, ones(), 3))
	inOneProcess(t, "rpc/RpcTest.test_nested_rref", nestedRefs(dense, 1, []any{ones(), 1}, []any{ones(), 2}))
	inProcesses(t, "rpc/RpcTest.test_nested_rref_stress", nestedRefs(dense, 20, []any{ones(), 1}, []any{ones(), 2}))
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_nested_remote_sparse", nestedRemote(sparse, s...))
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_nested_rref_sparse", nestedRefs(sparse, 1, s, s))
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_nested_rref_stress_sparse", nestedRefs(sparse, 20, s, s))
	inOneProcess(t, "rpc/RpcTest.test_rpc_return_rref", func(t require.TestingT, w worker) {
		f, err := returnRef.Call(w.ctx, w.Agent, w.next(1), string(w.next(2)))
		require.NoError(t, err)
		require.Equal(t, string(w.next(2)), f.OwnerName())
		got, err := f.ToHere(w.ctx)
		requireSum(t, got, err, ones(), 1)
	})
	inProcesses(t, "rpc/RpcTest.test_rref_forward_chain", func(t require.TestingT, w worker) {
		const ttl = 8
		next := w.n % parityWorld
		f := rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", full(1, w.n, w.n), 1)
		link, err := continueChain(w.ctx, w.Agent, chainArgs{next, f, ttl})
		require.NoError(t, err)
		for i := range ttl {
			require.Nil(t, link.Value)
			require.Len(t, link.Next, 1)
			require.Equal(t, agent.WorkerInfo{Name: string(w.next(1 + i)), Rank: (next + i) % parityWorld}, link.Next[0].Owner())
			link, err = link.Next[0].ToHere(w.ctx)
			require.NoError(t, err)
		}
		require.Empty(t, link.Next)
		requireEqual(t, full(2, w.n, w.n), link.Value)
	})
}
