package agent_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

func requireFilled(t testing.TB, got any, value float32, shape ...int) {
	t.Helper()
	require.IsType(t, &tensor.Tensor{}, got)
	same, err := tensor.Equal(got.(*tensor.Tensor), filled(t, value, shape...))
	require.NoError(t, err)
	require.True(t, same, "%v", got)
}

func TestOp(t *testing.T) {
	group := startGroup(t, 2, nil)
	x, y := filled(t, 1, 2, 2), filled(t, 2, 2, 2)
	large := filled(t, 1, 600, 1000)
	for _, to := range []agent.To{"worker0", "worker1"} {
		for _, c := range []struct {
			name  string
			args  []any
			value float32
			shape []int
		}{
			{"aten::add", []any{x, y}, 3, []int{2, 2}},
			{"aten::add", []any{x, 1}, 2, []int{2, 2}},
			{"aten::add.Tensor", []any{x, y, agent.Named{"alpha": 3}}, 7, []int{2, 2}},
			{"aten::add", []any{agent.Named{"self": x, "other": y, "alpha": 2.0}}, 5, []int{2, 2}},
			{"aten::add", []any{filled(t, 1, 300, 1), filled(t, 1, 1, 300)}, 2, []int{300, 300}},
			{"aten::mul", []any{large, 4}, 4, []int{600, 1000}},
			{"aten::full", []any{[]int{2, 3}, 5.0}, 5, []int{2, 3}},
			{"aten::cat", []any{[]*tensor.Tensor{x, x}}, 1, []int{4, 2}},
		} {
			got, err := group[0].Op(t.Context(), to, c.name, c.args...)
			require.NoError(t, err, c.name)
			require.Len(t, got, 1)
			requireFilled(t, got[0], c.value, c.shape...)
			sum, err := agent.One[*tensor.Tensor](group[0].OpAsync(t.Context(), to, c.name, c.args...).Wait(t.Context()))
			require.NoError(t, err, c.name)
			requireFilled(t, sum, c.value, c.shape...)
		}
		got, err := group[0].Op(t.Context(), to, "aten::max.dim", x, 0)
		require.NoError(t, err)
		require.Len(t, got, 2, "values and indices")
	}
}

func TestOpErrors(t *testing.T) {
	group := startGroup(t, 2, nil)
	x := filled(t, 1, 2)
	call := func(name string, args ...any) error {
		_, err := group[0].Op(t.Context(), "worker1", name, args...)
		var remote *agent.RemoteError
		require.ErrorAs(t, err, &remote, "the error comes from the worker that was called")
		require.ErrorContains(t, err, "agent: call "+name+" on worker1: ")
		return err
	}
	var size *ops.SizeError
	err := call("aten::add", x, filled(t, 1, 3))
	require.ErrorAs(t, err, &size)
	require.Equal(t, ops.SizeError{A: 2, B: 3}, *size)
	require.ErrorContains(t, err, "The size of tensor a (2) must match the size of tensor b (3) at non-singleton dimension 0")

	var unknown *aten.UnknownError
	err = call("aten::addd", x, x)
	require.ErrorAs(t, err, &unknown)
	require.ErrorIs(t, err, agent.ErrNoFunction)
	require.ErrorContains(t, err, "Cannot find matching operator for schema aten::addd; did you mean aten::add?")

	require.ErrorIs(t, call("aten::add"), agent.ErrArguments)
	require.ErrorIs(t, call("aten::add", x, "y"), agent.ErrArguments)
	require.ErrorIs(t, call("aten::add", x, x, agent.Named{"beta": 1}), agent.ErrArguments)
	require.ErrorContains(t, call("aten::relu", 5), `aten::relu: argument "self" (position 0) is int; want Tensor`)

	long := "aten::" + string(make([]byte, 2000))
	_, err = group[0].Op(t.Context(), "worker1", long)
	require.ErrorIs(t, err, agent.ErrArguments)
	_, err = group[0].OpAsync(t.Context(), "worker1", "aten::add", agent.Named{}, agent.Named{}).Wait(t.Context())
	require.ErrorIs(t, err, agent.ErrArguments)
}

// The operators in Config.Operators of a worker replace the default ones, and may make calls. Join
// fails with ErrConfig if Config.Handlers has the type of operators.
func TestOperators(t *testing.T) {
	table := aten.Default().Clone()
	relu, err := table.Lookup("aten::relu")
	require.NoError(t, err)
	require.NoError(t, table.Replace(aten.Operator{Schema: relu[0].Schema, Kernel: func(ctx context.Context, args []aten.Value) ([]aten.Value, error) {
		caller, _ := agent.Caller(ctx)
		return agent.FromContext(ctx).Op(ctx, caller.To(), "aten::neg", args...)
	}}))
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		if rank == 1 {
			c.Operators = table
		}
	})
	x := filled(t, 1, 2)
	for to, want := range map[agent.To]float32{"worker0": 1, "worker1": -1} {
		got, err := group[0].Op(t.Context(), to, "aten::relu", x)
		require.NoError(t, err)
		requireFilled(t, got[0], want, 2)
	}
	_, err = agent.Join(t.Context(), agent.Config{Name: "a", WorldSize: 1, Rendezvous: "mem://", Handlers: map[string]agent.Handler{"aten": nullHandler{}}})
	require.ErrorIs(t, err, agent.ErrConfig)
}

type nullHandler struct{}

func (nullHandler) Open(*agent.Request) (agent.Task, error) { return nil, nil }

func BenchmarkOp(b *testing.B) {
	group := startGroup(b, 2, nil)
	x, y := any(filled(b, 1, 2, 2)), any(filled(b, 2, 2, 2))
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		_, err := group[0].Op(ctx, "worker1", "aten::add", x, y)
		require.NoError(b, err)
	}
}
