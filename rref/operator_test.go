package rref_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var (
	opAdd     = rref.NewOperator[*tensor.Tensor]("aten::add")
	opItem    = rref.NewOperator[float64]("test::item")
	opUnknown = rref.NewOperator[*tensor.Tensor]("aten::no_such_operator")
	opTwo     = rref.NewOperator[*tensor.Tensor]("test::two")
	opWait    = rref.NewOperator[*tensor.Tensor]("test::wait")
)

// withOperators adds operators of the test to the table of a worker.
func withOperators(_ int, c *agent.Config, _ *rref.Options) {
	c.Operators = aten.Default()
	for schema, run := range map[string]func(context.Context, []aten.Value) ([]aten.Value, error){
		"test::item(Tensor self) -> float": func(_ context.Context, args []aten.Value) ([]aten.Value, error) {
			data, err := tensor.Data[float32](args[0].(*tensor.Tensor))
			return []aten.Value{float64(data[0])}, err
		},
		"test::two(Tensor self) -> (Tensor, Tensor)": func(_ context.Context, args []aten.Value) ([]aten.Value, error) {
			return []aten.Value{args[0], args[0]}, nil
		},
		"test::wait(Tensor self) -> Tensor": func(ctx context.Context, _ []aten.Value) ([]aten.Value, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
	} {
		if err := c.Operators.Register(aten.Operator{Schema: aten.MustParse(schema), Kernel: run}); err != nil {
			panic(err)
		}
	}
}

// TestOperators checks that operators run on the tensor of a reference in the three modes, on another
// worker and on this one, with arguments by name and a time limit.
func TestOperators(t *testing.T) {
	run(t, 2, withOperators, func(t *testing.T, g *group) {
		a, ctx := g.agents[0], t.Context()
		x := func() *tensor.Tensor { return full(3, 2, 2) }
		for name, f := range map[string]*rref.Ref[*tensor.Tensor]{
			"worker1": rref.RemoteOp[*tensor.Tensor](ctx, a, "worker1", "aten::add", x(), 1),
			"worker0": rref.Own(a, full(4, 2, 2)),
		} {
			sum, err := opAdd.Call(ctx, f, x())
			require.NoError(t, err, name)
			requireEqual(t, full(7, 2, 2), sum)
			sum, err = opAdd.Go(ctx, f, x(), agent.Named{"alpha": 2}).Wait(ctx)
			require.NoError(t, err, name)
			requireEqual(t, full(10, 2, 2), sum)
			kept := opAdd.Remote(ctx, f, x(), agent.WithTimeout(time.Minute))
			require.Equal(t, name, kept.OwnerName())
			n, err := opItem.Call(ctx, kept)
			require.NoError(t, err, name)
			require.Equal(t, 7.0, n)
			_, err = opWait.Call(ctx, f, agent.WithTimeout(10*time.Millisecond))
			require.ErrorIs(t, err, agent.ErrTimeout, name)
			require.NoError(t, kept.Release(ctx))
			require.NoError(t, f.Release(ctx))
		}
		g.requireEmpty()
	})
}

// TestOperatorErrors checks the errors of operators on references, in the three modes.
func TestOperatorErrors(t *testing.T) {
	run(t, 2, withOperators, func(t *testing.T, g *group) {
		a, ctx := g.agents[0], t.Context()
		f := rref.RemoteOp[*tensor.Tensor](ctx, a, "worker1", "aten::add", full(1, 2, 2), 1)
		for name, c := range map[string]struct {
			op   rref.Operator[*tensor.Tensor]
			args []any
			want error
		}{
			"no such operator":    {opUnknown, nil, agent.ErrNoFunction},
			"too many arguments":  {opAdd, []any{1, 2, 3, 4}, agent.ErrArguments},
			"arguments of a kind": {opAdd, []any{"two"}, agent.ErrArguments},
			"two results":         {opTwo, nil, rref.ErrType},
		} {
			_, err := c.op.Call(ctx, f, c.args...)
			require.ErrorIs(t, err, c.want, name)
			_, err = c.op.Go(ctx, f, c.args...).Wait(ctx)
			require.ErrorIs(t, err, c.want, name)
			kept := c.op.Remote(ctx, f, c.args...)
			_, err = kept.ToHere(ctx)
			require.ErrorIs(t, err, c.want, name)
			require.NoError(t, kept.Release(ctx))
		}
		_, err := opAdd.Call(ctx, f, full(1, 3))
		require.ErrorContains(t, err, "The size of tensor a (2) must match the size of tensor b (3)")
		_, err = rref.NewOperator[string]("aten::add").Call(ctx, f, 1)
		require.ErrorIs(t, err, agent.ErrResult)
		require.NoError(t, f.Release(ctx))
		_, err = opAdd.Call(ctx, f, 1)
		require.ErrorIs(t, err, rref.ErrReleased)
		_, err = opAdd.Call(ctx, nil, 1)
		require.Error(t, err)
		g.requireEmpty()
	})
}
