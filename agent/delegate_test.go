package agent_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// keeper is a handler that has each request run as one of type typ, keeps the result, and replies
// with a None.
type keeper struct {
	typ  string
	kept chan kept
}

type kept struct {
	*agent.Kept
	err error
}

func (k keeper) Open(r *agent.Request) (agent.Task, error) {
	return r.Delegate(k.typ, func(result *agent.Kept, err error) {
		k.kept <- kept{result, err}
		_ = r.Reply(&agent.None{})
	})
}

// invocation is how Invoke and Op encode arguments.
type invocation struct {
	Args  []any
	Named map[string]any
}

// TestDelegate checks that a handler gets the result, or the error, of a function, a method or an
// operator that runs on its behalf, and that the caller gets the handler's reply.
func TestDelegate(t *testing.T) {
	why := errors.New("why")
	double := agent.NewFunc[int, int]("test.double")
	fails := agent.NewFunc[int, int]("test.fails")
	panics := agent.NewFunc[int, int]("test.panics")
	later := agent.NewFunc[int, int]("test.later")
	all := make(chan kept, 1)
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{
			double.Serve(func(_ context.Context, i int) (int, error) { return 2 * i, nil }, agent.WithShort()),
			fails.Serve(func(context.Context, int) (int, error) { return 0, why }),
			panics.Serve(func(context.Context, int) (int, error) { panic("oh") }),
			later.ServeAsync(func(_ context.Context, i int) *agent.Future[int] { return future.Of(3 * i) }),
			agent.ReflectFunc("test.two", func(i int) (int, string) { return i, "x" }),
		}
		c.Handlers = map[string]agent.Handler{
			"keep.func": keeper{agent.TypeFunc, all}, "keep.invoke": keeper{agent.TypeInvoke, all}, "keep.op": keeper{agent.TypeOp, all},
			"keep.other": keeper{"keep.func", all},
		}
	})
	call := func(name string, arg int) kept {
		t.Helper()
		_, err := agent.NewMessageType[int, agent.None]("keep.func").Call(t.Context(), group[0], "worker1", name, arg)
		require.NoError(t, err)
		return <-all
	}
	r := call("test.double", 4)
	require.NoError(t, r.err)
	require.Equal(t, 8, *r.Value.(*int))
	r = call("test.later", 4)
	require.NoError(t, r.err)
	require.Equal(t, 12, *r.Value.(*int))
	require.ErrorIs(t, call("test.fails", 1).err, why)
	var p *agent.PanicError
	require.ErrorAs(t, call("test.panics", 1).err, &p)
	require.Equal(t, "oh", p.Value)

	invoke := func(typ, name string, args ...any) ([]any, error) {
		t.Helper()
		_, err := agent.NewMessageType[invocation, agent.None](typ).Call(t.Context(), group[0], "worker1", name, invocation{Args: args})
		if err != nil {
			return nil, err
		}
		r := <-all
		require.NoError(t, r.err)
		return *r.Value.(*[]any), nil
	}
	results, err := invoke("keep.invoke", "test.two", 5)
	require.NoError(t, err)
	require.Equal(t, []any{5, "x"}, results)
	results, err = invoke("keep.invoke", "test.double", 5)
	require.NoError(t, err)
	require.Equal(t, []any{10}, results)
	results, err = invoke("keep.op", "aten::add", filled(t, 1, 2), filled(t, 2, 2))
	require.NoError(t, err)
	same, err := tensor.Equal(filled(t, 3, 2), results[0].(*tensor.Tensor))
	require.NoError(t, err)
	require.True(t, same)

	_, err = invoke("keep.invoke", "test.unknown", 5)
	require.ErrorIs(t, err, agent.ErrNoFunction)
	_, err = invoke("keep.op", "aten::unknown", 5)
	require.ErrorIs(t, err, agent.ErrNoFunction)
	_, err = invoke("keep.invoke", "test.double", "five")
	require.ErrorIs(t, err, agent.ErrArguments)
	_, err = invoke("keep.other", "test.double", 5)
	require.ErrorIs(t, err, agent.ErrConfig)
	require.Empty(t, all)
}

// TestDelegateBorrows checks that the memory of borrowed arguments is reused when a kept result is
// dropped, and not before.
func TestDelegateBorrows(t *testing.T) {
	same := agent.NewFunc[*tensor.Tensor, *tensor.Tensor]("test.same")
	all := make(chan kept, 1)
	pool := tensor.NewPool(tensor.PoolOptions{})
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		c.Funcs = agent.Funcs{same.Serve(func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) { return x, nil }, agent.WithBorrowedArgs())}
		c.Handlers = map[string]agent.Handler{"keep.func": keeper{agent.TypeFunc, all}}
		if rank == 1 {
			c.Allocator = pool
		}
	})
	_, err := agent.NewMessageType[*tensor.Tensor, agent.None]("keep.func").Call(t.Context(), group[0], "worker1", "test.same", filled(t, 7, 1000))
	require.NoError(t, err)
	r := <-all
	require.NoError(t, r.err)
	x := *r.Value.(**tensor.Tensor)
	data, err := tensor.Data[float32](x)
	require.NoError(t, err)
	require.EqualValues(t, 7, data[999])
	r.Drop()
	if invariants.Enabled {
		require.Panics(t, func() { _, _ = tensor.Data[float32](x) })
		return
	}
	_, err = tensor.Data[float32](x)
	require.ErrorIs(t, err, tensor.ErrReleased)
}
