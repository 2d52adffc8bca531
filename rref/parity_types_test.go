package rref_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// The names of the types of a tensor and of a myClass.
const (
	tensorType = "*tensor.Tensor"
	classType  = "*rref_test.myClass"
)

// typed is a reference of any type.
type typed interface {
	Type(ctx context.Context, opts ...agent.CallOption) (string, error)
	TypeAsync(ctx context.Context, opts ...agent.CallOption) *agent.Future[string]
}

// typeBlocking and typeNonBlocking are the two ways to get a type.
func typeBlocking(w worker, f typed, opts ...agent.CallOption) (string, error) {
	return f.Type(w.ctx, opts...)
}

func typeNonBlocking(w worker, f typed, opts ...agent.CallOption) (string, error) {
	return f.TypeAsync(w.ctx, opts...).Wait(w.ctx)
}

// typeOf is typeBlocking or typeNonBlocking.
type typeOf func(w worker, f typed, opts ...agent.CallOption) (string, error)

// knownTypes runs the parity case id: each worker gets the type of a tensor on the next worker, by one
// message, and ten times more without a message. Then again is called, with the reference, and must
// not send a message either. The last type is that of a value of another type.
func knownTypes(t *testing.T, id string, get typeOf, again func(t require.TestingT, w worker, f typed)) {
	parity.Case(t, id, func(t *testing.T) {
		var asked [parityWorld]atomic.Int32
		g := start(t, parityWorld, func(rank int, c *agent.Config, o *rref.Options) {
			serveParity(rank, c, o)
			c.FaultHook = func(m *agent.Message) agent.Fault {
				if m.Kind == agent.KindRequest && m.Type == "rref.type" {
					asked[rank].Add(1)
				}
				return agent.Fault{}
			}
		})
		g.each(func(t require.TestingT, w worker) {
			f := rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", full(1, 2), 1)
			typ, err := get(w, f)
			require.NoError(t, err)
			require.Equal(t, tensorType, typ)
			require.EqualValues(t, 1, asked[w.Self().Rank].Load())
			for range 10 {
				typ, err := get(w, f)
				require.NoError(t, err)
				require.Equal(t, tensorType, typ)
			}
			again(t, w, f)
			require.EqualValues(t, 1, asked[w.Self().Rank].Load())
			m := rref.Remote(w.ctx, w.Agent, w.next(1), newMyClass, classArgs{A: 0})
			typ, err = get(w, m)
			require.NoError(t, err)
			require.Equal(t, classType, typ)
			require.EqualValues(t, 2, asked[w.Self().Rank].Load())
		})
		g.finish()
	})
}

func TestParityTypes(t *testing.T) {
	knownTypes(t, "rpc/RpcTest.test_rref_type_blocking", typeBlocking, func(require.TestingT, worker, typed) {})
	knownTypes(t, "rpc/RpcTest.test_rref_type_non_blocking", typeNonBlocking, func(t require.TestingT, w worker, f typed) {
		first := f.TypeAsync(w.ctx)
		for range 10 {
			later := f.TypeAsync(w.ctx)
			require.NoError(t, later.OnDone(func(g *agent.Future[string]) {
				typ, err := g.Result()
				require.NoError(t, err)
				require.Equal(t, tensorType, typ)
			}))
			require.Same(t, first, later)
		}
	})
	for _, c := range []struct {
		blocking string
		get      typeOf
	}{{"blocking", typeBlocking}, {"non_blocking", typeNonBlocking}} {
		inOneProcess(t, "rpc/RpcTest.test_rref_type_with_error_"+c.blocking, func(t require.TestingT, w worker) {
			_, err := c.get(w, rref.Remote(w.ctx, w.Agent, w.next(1), raiseFunc, agent.None{}))
			require.ErrorContains(t, err, expectedErr)
			require.NotErrorIs(t, err, rref.ErrCreation)
		})
		inOneProcess(t, "rpc/RpcTest.test_rref_type_owner_"+c.blocking, func(t require.TestingT, w worker) {
			typ, err := c.get(w, rref.Own(w.Agent, full(2, 2)))
			require.NoError(t, err)
			require.Equal(t, tensorType, typ)
			typ, err = c.get(w, rref.Own(w.Agent, &myClass{0}))
			require.NoError(t, err)
			require.Equal(t, classType, typ)
		})
		inSimulatedTime(t, "rpc/TensorPipeAgentRpcTest.test_rref_get_type_timeout_"+c.blocking, nil, func(t require.TestingT, w worker) {
			slow := rref.Remote(w.ctx, w.Agent, w.next(1), newMyClass, classArgs{ones(), true})
			begun := time.Now()
			_, err := c.get(w, slow, agent.WithTimeout(500*time.Millisecond))
			requireTimeout(t, err, "500 ms")
			require.Equal(t, 500*time.Millisecond, time.Since(begun))
			m, err := slow.ToHere(w.ctx)
			require.NoError(t, err)
			requireEqual(t, ones(), m.A)
			require.Equal(t, 2*time.Second, time.Since(begun))
		})
	}
	inSimulatedTime(t, "rpc/RpcTest.test_rref_type_slow_init", nil, func(t require.TestingT, w worker) {
		begun := time.Now()
		typ, err := rref.Remote(w.ctx, w.Agent, w.next(1), slowAdd, [2]any{full(1, 2), 1}).Type(w.ctx)
		require.NoError(t, err)
		require.Equal(t, tensorType, typ)
		require.Equal(t, time.Second, time.Since(begun))
	})
}
