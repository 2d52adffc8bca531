package agent_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

type sumArgs struct {
	A, B int
	C    int8 `tensorpipe:"c"`
}

var sumFields = agent.NewFunc[sumArgs, int]("test.sum")

type counter struct{ start int }

func (c counter) Add(n int) int                        { return c.start + n }
func (c counter) Fail(context.Context) (string, error) { return "", errQuota }
func (c counter) Later(n int) *agent.Future[int]       { return future.Of(c.start + n) }
func (c counter) Next(to, name string) func() bool     { return nil }

func serveNamed(_ int, c *agent.Config) {
	c.Registry = codec.NewRegistry()
	if err := c.Registry.RegisterError("test.errQuota", errQuota); err != nil {
		panic(err)
	}
	c.Funcs = agent.Funcs{
		agent.ReflectFunc("min", func(first int, others ...int) int {
			for _, n := range others {
				first = min(first, n)
			}
			return first
		}, agent.WithShort()),
		agent.ReflectFunc("divide", func(a, b int) (int, int, error) {
			if b == 0 {
				return 0, 0, errQuota
			}
			return a / b, a % b, nil
		}),
		agent.ReflectFunc("widths", func(_ context.Context, a int8, b uint16, c float32, d time.Duration, e []int, f *tensor.Tensor, g any) []any {
			return []any{a, b, c, d, e == nil, f == nil, g}
		}),
		agent.ReflectFunc("nothing", func() {}),
		agent.ReflectFunc("fields", func(s sumArgs) int { return s.A * s.B }),
		agent.ReflectAsyncFunc("later", func(n int) *agent.Future[int] { return future.Of(n + 1) }),
		agent.ReflectFunc("hang", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }),
		agent.ReflectAsyncFunc("never", func() *agent.Future[int] { return nil }),
		sumFields.Serve(func(_ context.Context, s sumArgs) (int, error) { return s.A + s.B + int(s.C), nil }),
	}
	c.Funcs = append(c.Funcs, agent.Methods("counter", counter{start: 10})...)
}

func TestInvoke(t *testing.T) {
	group := startGroup(t, 2, serveNamed)
	inf := math.Inf(1)
	for _, c := range []struct {
		name string
		args []any
		want []any
	}{
		{"min", []any{3}, []any{3}},
		{"min", []any{3, int8(1), uint64(2)}, []any{1}},
		{"divide", []any{7, 2}, []any{3, 1}},
		{"nothing", nil, []any{}},
		{"widths", []any{127, 65535, 0.1, 5, nil, nil, nil}, []any{[]any{int8(127), uint16(65535), float32(0.1), time.Duration(5), true, true, nil}}},
		{"widths", []any{-128, 0, inf, int64(5), []int{}, filled(t, 1, 1), "x"}, []any{[]any{int8(-128), uint16(0), float32(inf), time.Duration(5), false, false, "x"}}},
		{"widths", []any{int8(1), 1, 1 << 24, 1, nil, nil, 1}, []any{[]any{int8(1), uint16(1), float32(1 << 24), time.Duration(1), true, true, 1}}},
		{"fields", []any{agent.Named{"A": 6, "B": 7}}, []any{42}},
		{"later", []any{1}, []any{2}},
		{"test.sum", []any{agent.Named{"A": 1, "B": uint(2), "c": 3}}, []any{6}},
		{"test.sum", []any{agent.Named{}, agent.WithTimeout(time.Minute)}, []any{0}},
		{"counter.Add", []any{5}, []any{15}},
		{"counter.Later", []any{6}, []any{16}},
	} {
		for _, to := range []agent.To{"worker0", "worker1", agent.Rank(1)} {
			got, err := group[0].Invoke(t.Context(), to, c.name, c.args...)
			require.NoError(t, err, "%s%v", c.name, c.args)
			require.Equal(t, c.want, got, "%s%v", c.name, c.args)
			got, err = group[0].InvokeAsync(t.Context(), to, c.name, c.args...).Wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		}
	}
}

func TestInvokeErrors(t *testing.T) {
	group := startGroup(t, 2, serveNamed)
	for _, c := range []struct {
		name  string
		args  []any
		match error
		text  string
	}{
		{"absent", nil, agent.ErrNoFunction, "call absent on worker1: not served: no function of that name"},
		{"min", nil, agent.ErrArguments, "the function takes (int, ...int), got no arguments"},
		{"min", []any{1, "x"}, agent.ErrArguments, "the function takes (int, ...int): argument 1 is string, want int"},
		{"divide", []any{1, 2, int8(3)}, agent.ErrArguments, "the function takes (int, int), got (int, int, int8)"},
		{"divide", []any{1, nil}, agent.ErrArguments, "argument 1 is nil, want int"},
		{"divide", []any{1, 2.0}, agent.ErrArguments, "argument 1 is float64 2, which int cannot hold"},
		{"divide", []any{1, 0}, errQuota, errQuota.Error()},
		{"divide", []any{agent.Named{"a": 1}}, agent.ErrArguments, "the function takes (int, int), which have no names"},
		{"nothing", []any{10}, agent.ErrArguments, "the function takes no arguments, got (int)"},
		{"widths", []any{128, 0, 0.0, 0, nil, nil, nil}, agent.ErrArguments, "argument 0 is int 128, which int8 cannot hold"},
		{"widths", []any{0, -1, 0.0, 0, nil, nil, nil}, agent.ErrArguments, "argument 1 is int -1, which uint16 cannot hold"},
		{"widths", []any{0, 0, 1e300, 0, nil, nil, nil}, agent.ErrArguments, "which float32 cannot hold"},
		{"widths", []any{0, 0, 1<<24 + 1, 0, nil, nil, nil}, agent.ErrArguments, "argument 2 is int 16777217, which float32 cannot hold"},
		{"widths", []any{0, 0, 0.0, uint64(math.MaxUint64), nil, nil, nil}, agent.ErrArguments, "which time.Duration cannot hold"},
		{"test.sum", []any{agent.Named{"A": 1, "C": 2}}, agent.ErrArguments, `wrong arguments: no argument "C", but A, B, c`},
		{"test.sum", []any{agent.Named{"A": "x"}}, agent.ErrArguments, "argument A is string, want int"},
		{"test.sum", []any{1, agent.Named{"A": 1}}, agent.ErrArguments, "the function takes (agent_test.sumArgs), got (int) and 1 by name"},
		{"test.sum", []any{1}, agent.ErrArguments, "argument 0 is int, want agent_test.sumArgs"},
		{"never", nil, agent.ErrResult, "the asynchronous function returned no future"},
		{"counter.Fail", nil, errQuota, errQuota.Error()},
		{"counter.Next", []any{"a", "b"}, codec.ErrType, "func() bool): type does not fit"},
	} {
		_, err := group[0].Invoke(t.Context(), "worker1", c.name, c.args...)
		require.ErrorIs(t, err, c.match, "%s%v", c.name, c.args)
		require.ErrorContains(t, err, c.text)
		require.ErrorContains(t, err, "agent: call "+c.name+" on worker1: ")
		var remote *agent.RemoteError
		require.ErrorAs(t, err, &remote, "it comes from the worker called")
	}
	_, err := group[0].Invoke(t.Context(), "worker1", "min", agent.Named{}, agent.Named{})
	require.ErrorIs(t, err, agent.ErrArguments)
	_, err = group[0].InvokeAsync(t.Context(), "worker1", "min", agent.Named{}, agent.Named{}).Wait(t.Context())
	require.ErrorIs(t, err, agent.ErrArguments)
	_, err = group[0].Invoke(t.Context(), "worker1", "min", 1, counter{})
	require.ErrorIs(t, err, codec.ErrType)
	require.ErrorContains(t, err, "Args[1].(agent_test.counter)")
	_, err = group[0].Invoke(t.Context(), "worker1", "hang", agent.WithRemoteStack(), agent.WithTimeout(time.Millisecond))
	require.ErrorIs(t, err, agent.ErrTimeout)
}

func TestOne(t *testing.T) {
	group := startGroup(t, 1, serveNamed)
	n, err := agent.One[int](group[0].Invoke(t.Context(), "worker0", "min", 3, 4))
	require.NoError(t, err)
	require.Equal(t, 3, n)
	_, err = agent.One[string](group[0].Invoke(t.Context(), "worker0", "min", 3, 4))
	require.ErrorIs(t, err, agent.ErrResult)
	require.ErrorContains(t, err, "the result is int, want string")
	_, err = agent.One[int](group[0].Invoke(t.Context(), "worker0", "divide", 3, 4))
	require.ErrorContains(t, err, "2 results, want one")
	_, err = agent.One[int](group[0].Invoke(t.Context(), "worker0", "divide", 3, 0))
	require.ErrorIs(t, err, errQuota)
}

// A Func can call functions that ReflectFunc serves if these have at most one parameter and one
// result.
func TestFuncCallsFunction(t *testing.T) {
	group := startGroup(t, 2, serveNamed)
	n, err := agent.NewFunc[int, int]("later").Call(t.Context(), group[0], "worker1", 5)
	require.NoError(t, err)
	require.Equal(t, 6, n)
	n, err = agent.NewFunc[sumArgs, int]("fields").Call(t.Context(), group[0], "worker1", sumArgs{A: 2, B: 3})
	require.NoError(t, err)
	require.Equal(t, 6, n)
	_, err = agent.NewFunc[agent.None, agent.None]("nothing").Call(t.Context(), group[0], "worker1", agent.None{})
	require.NoError(t, err)
	_, err = agent.NewFunc[sumArgs, int]("divide").Call(t.Context(), group[0], "worker1", sumArgs{})
	require.ErrorIs(t, err, agent.ErrArguments)
	require.ErrorContains(t, err, "the function takes (int, int) and has 2 results: call it with Invoke")
	_, err = agent.NewFunc[string, int]("later").Call(t.Context(), group[0], "worker1", "x")
	require.ErrorIs(t, err, codec.ErrType)
}

func TestFunctionsThatCannotBeServed(t *testing.T) {
	for _, c := range []struct {
		served agent.Served
		text   string
	}{
		{agent.ReflectFunc("f", nil), "f: want a function, got nil"},
		{agent.ReflectFunc("f", 1), "f: want a function, got int"},
		{agent.ReflectFunc("f", (func())(nil)), "f: want a function, got func()"},
		{agent.ReflectFunc("f", func() *agent.Future[int] { return nil }), agent.ErrFuture.Error()},
		{agent.ReflectAsyncFunc("f", func() int { return 1 }), "must return a *Future and nothing else, but this is a func() int"},
		{agent.ReflectAsyncFunc("f", func() (*agent.Future[int], error) { return nil, nil }), "must return a *Future"},
		{agent.Methods("f", nil)[0], "f: want a value with exported methods, got nil"},
		{agent.Methods("f", 5)[0], "got int"},
		{agent.Methods("f", (*counter)(nil))[0], "got *agent_test.counter"},
	} {
		_, err := agent.Join(t.Context(), agent.Config{Name: "a", WorldSize: 1, Rendezvous: "mem://", Funcs: agent.Funcs{c.served}})
		require.ErrorIs(t, err, agent.ErrConfig)
		require.ErrorContains(t, err, c.text)
	}
}
