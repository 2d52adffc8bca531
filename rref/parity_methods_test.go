package rref_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// proxy calls methods of the value of one reference in one mode.
type proxy[M any] struct {
	ctx  context.Context
	ref  *rref.Ref[M]
	mode int
	opts []agent.CallOption
}

// The modes of a proxy.
const (
	blocking = iota
	asynchronous
	remote
	modes
)

// through calls the method m of the value of p, and returns its result: that of the call, that of the
// future, or the value that the owner has kept.
func through[M, A, R any](p proxy[M], m rref.Method[M, A, R], args A) (R, error) {
	switch p.mode {
	case blocking:
		return m.Call(p.ctx, p.ref, args, p.opts...)
	case asynchronous:
		return m.Go(p.ctx, p.ref, args, p.opts...).Wait(p.ctx)
	}
	kept := m.Remote(p.ctx, p.ref, args, p.opts...)
	if _, err := kept.Created().Wait(p.ctx); err != nil {
		var zero R
		return zero, err
	}
	return kept.ToHere(p.ctx)
}

// requireResult requires that the method m of the value of p returns want.
func requireResult[M, A, R any](t require.TestingT, p proxy[M], m rref.Method[M, A, R], args A, want any) {
	got, err := through(p, m, args)
	require.NoError(t, err)
	requireEqual(t, want, got)
}

// modesOf returns a proxy of f for each mode.
func modesOf[M any](w worker, f *rref.Ref[M], opts ...agent.CallOption) (all [modes]proxy[M]) {
	for i := range all {
		all[i] = proxy[M]{w.ctx, f, i, opts}
	}
	return all
}

// newTensor makes the tensor 1+1+3 of the tests on the worker that is steps further.
func (w worker) newTensor(steps int) *rref.Ref[*tensor.Tensor] {
	return rref.Remote(w.ctx, w.Agent, w.next(steps), dense.my, abc{ones(), 1, 3})
}

// methodsOfTensor calls methods of a tensor on the worker that is steps further.
func methodsOfTensor(steps int) script {
	return func(t require.TestingT, w worker) {
		by := modesOf(w, w.newTensor(steps))
		requireResult(t, by[blocking], tensorSize, agent.None{}, []int{2, 2})
		requireResult(t, by[asynchronous], tensorAdd, any(1), full(6, 2, 2))
		requireResult(t, by[remote], tensorView, []int{1, 4}, full(5, 1, 4))
	}
}

// methodsOfClass calls methods of a myClass on the worker that is steps further, which change it.
func methodsOfClass(steps int) script {
	return func(t require.TestingT, w worker) {
		by := modesOf(w, rref.Remote(w.ctx, w.Agent, w.next(steps), newMyClass, classArgs{A: 7}))
		for _, p := range by {
			requireResult(t, p, getValue, agent.None{}, 7)
		}
		for _, p := range by {
			requireResult(t, p, incrementValue, any(1), agent.None{})
		}
		for i, p := range by {
			requireResult(t, p, getValue, agent.None{}, 10)
			requireResult(t, p, instanceMethod, any(2+i), 12+i)
			requireResult(t, p, staticMethod, 9+i, 9+i > 10)
			x := full(float32(min(i, 1)), 2+i, 2+i)
			requireResult(t, p, classMethod, [2]any{2, x}, full(float32(2+min(i, 1)), 2+i, 2+i))
		}
	}
}

func TestParityMethods(t *testing.T) {
	inProcesses(t, "rpc/RpcTest.test_rref_proxy_tensor", methodsOfTensor(1))
	inOneProcess(t, "rpc/RpcTest.test_rref_proxy_tensor_self", methodsOfTensor(0))
	inProcesses(t, "rpc/RpcTest.test_rref_proxy_class", methodsOfClass(1))
	inOneProcess(t, "rpc/RpcTest.test_rref_proxy_class_self", methodsOfClass(0))
	inOneProcess(t, "rpc/RpcTest.test_rref_proxy_reuse", func(t require.TestingT, w worker) {
		for i, p := range modesOf(w, w.newTensor(1)) { // each calls three methods
			requireResult(t, p, tensorSize, agent.None{}, []int{2, 2})
			n := []int{1, 3, 5}[i]
			requireResult(t, p, tensorAdd, any(n), full(float32(5+n), 2, 2))
			shape, want := [][]int{{1, 4}, {4, 1}, {-1}}[i], [][]int{{1, 4}, {4, 1}, {4}}[i]
			requireResult(t, p, tensorView, shape, full(5, want...))
		}
	})
	inOneProcess(t, "rpc/RpcTest.test_rref_proxy_non_exist", func(t require.TestingT, w worker) {
		for _, p := range modesOf(w, w.newTensor(1)) {
			_, err := through(p, nonExist, agent.None{})
			require.ErrorIs(t, err, rref.ErrNoMethod)
			require.ErrorContains(t, err, "type *tensor.Tensor has no method non_exist that "+string(w.next(1))+" serves")
		}
	})
	inSimulatedTime(t, "rpc/TensorPipeAgentRpcTest.test_rref_proxy_timeout", nil, func(t require.TestingT, w worker) {
		for mode := range modes {
			f := rref.Remote(w.ctx, w.Agent, w.next(1), newMyClass, classArgs{A: ones()})
			_, err := f.ToHere(w.ctx)
			require.NoError(t, err)
			begun := time.Now()
			_, err = through(modesOf(w, f, agent.WithTimeout(2*time.Second))[mode], slowMethod, any(ones()))
			requireTimeout(t, err, "2000 ms")
			require.Equal(t, 2*time.Second, time.Since(begun))
			begun = time.Now()
			slow := rref.Remote(w.ctx, w.Agent, w.next(1), newMyClass, classArgs{ones(), true})
			_, err = through(modesOf(w, slow, agent.WithTimeout(10*time.Millisecond))[mode], instanceMethod, any(ones()))
			requireTimeout(t, err, "10 ms")
			require.Equal(t, 10*time.Millisecond, time.Since(begun))
			m, err := slow.ToHere(w.ctx)
			require.NoError(t, err)
			requireEqual(t, ones(), m.A)
			requireResult(t, modesOf(w, slow)[mode], instanceMethod, any(ones()), full(2, 2, 2))
		}
	})
}

// TestParityMethodsByFunctions has functions call methods of a value, which their argument refers to,
// on its owner.
func TestParityMethodsByFunctions(t *testing.T) {
	inProcesses(t, "rpc/RpcTest.test_call_method_on_rref", func(t require.TestingT, w worker) {
		f := rref.Remote(w.ctx, w.Agent, w.next(1), newMyClass, classArgs{A: 10})
		owner := f.Owner().To()
		_, err := callMethod.Call(w.ctx, w.Agent, owner, callArgs{"increment_value", f, 2})
		require.NoError(t, err)
		_, err = callMethod.Go(w.ctx, w.Agent, owner, callArgs{"increment_value", f, 5}).Wait(w.ctx)
		require.NoError(t, err)
		_, err = rref.Remote(w.ctx, w.Agent, owner, callMethod, callArgs{"increment_value", f, 7}).ToHere(w.ctx)
		require.NoError(t, err)
		n, err := callMethod.Call(w.ctx, w.Agent, w.next(1), callArgs{"get_value", f, nil})
		require.NoError(t, err)
		require.Equal(t, 10+2+5+7, n)
	})
	inOneProcess(t, "rpc/RpcTest.test_return_local_rrefs", func(t require.TestingT, w worker) {
		refs, err := getRefs.Call(w.ctx, w.Agent, w.next(1), []int{1, 2, 3})
		require.NoError(t, err)
		for _, f := range refs {
			_, err := callMethod.Call(w.ctx, w.Agent, f.Owner().To(), callArgs{"increment_value", f, 10})
			require.NoError(t, err)
		}
		var values []any
		for _, f := range refs {
			n, err := callMethod.Call(w.ctx, w.Agent, f.Owner().To(), callArgs{"get_value", f, nil})
			require.NoError(t, err)
			values = append(values, n)
		}
		require.Equal(t, []any{11, 12, 13}, values)
	})
}
