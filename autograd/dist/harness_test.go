package dist_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// group is workers of this process, worker0 and so on.
type group struct {
	t       *testing.T
	store   store.Store
	network transport.Transport
	agents  []*agent.Agent
	graphs  []*dist.Autograd
	refs    []*rref.Refs
}

// configuration changes a worker before it joins.
type configuration func(rank int, c *agent.Config, o *dist.Options)

// start joins n workers over a network in memory. configure may be nil.
func start(t *testing.T, n int, configure configuration) *group {
	t.Helper()
	return startOn(t, mem.New(mem.NewNetwork()), n, configure)
}

// startOn joins n workers over network. configure may be nil.
func startOn(t *testing.T, network transport.Transport, n int, configure configuration) *group {
	t.Helper()
	g := &group{
		t: t, store: store.NewMemory(store.Limits{}), network: network,
		agents: make([]*agent.Agent, n), graphs: make([]*dist.Autograd, n), refs: make([]*rref.Refs, n),
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for rank := range n {
		wg.Go(func() { errs[rank] = g.join(rank, configure) })
	}
	wg.Wait()
	require.Equal(t, make([]error, n), errs)
	t.Cleanup(func() {
		for _, a := range g.agents {
			_ = a.Close() // of a test that has failed, or of an agent that is shut down
		}
		_ = g.store.Close()
	})
	return g
}

// join joins the worker of that rank, in place of an earlier one. configure may be nil.
func (g *group) join(rank int, configure configuration) (err error) {
	o := dist.Options{}
	c := agent.Config{
		Name: fmt.Sprint("worker", rank), Rank: rank, WorldSize: len(g.agents), Store: g.store, Listen: []string{"mem://"},
		Logger: slog.New(slog.DiscardHandler), Funcs: functions(),
		NewContext: func(o pipe.Options) (*pipe.Context, error) {
			o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: g.network}}
			o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}}
			return pipe.New(o)
		},
	}
	if configure != nil {
		configure(rank, &c, &o)
	}
	g.refs[rank], g.graphs[rank] = rref.New(rref.Options{Methods: methods()}), dist.New(o)
	c.Extensions = append(c.Extensions, g.refs[rank], g.graphs[rank])
	g.agents[rank], err = agent.Join(g.t.Context(), c)
	return err
}

// run runs f with n workers, and then shuts them down and checks that nothing is left.
func run(t *testing.T, n int, configure configuration, f func(t *testing.T, g *group)) {
	t.Helper()
	g := start(t, n, configure)
	f(t, g)
	g.requireEmpty()
	g.shutdown()
}

// shutdown shuts all workers down.
func (g *group) shutdown() {
	errs := make([]error, len(g.agents))
	var wg sync.WaitGroup
	for i, a := range g.agents {
		wg.Go(func() { errs[i] = a.Shutdown(g.t.Context()) })
	}
	wg.Wait()
	require.Equal(g.t, make([]error, len(errs)), errs)
}

// empty is the metrics of a worker without Contexts.
var empty = map[string]int64{"num_autograd_contexts": 0, "num_current_backward_passes": 0, "dist.send_nodes": 0, "dist.receive_nodes": 0}

// requireEmpty waits until no worker has a Context.
func (g *group) requireEmpty() {
	g.t.Helper()
	require.Eventually(g.t, func() bool {
		for _, a := range g.graphs {
			if !maps.Equal(empty, a.Metrics()) {
				return false
			}
		}
		return true
	}, testwait.Limit, time.Millisecond, "a Context is left")
}

// pair is the arguments of an operator on two Variables.
type pair struct{ X, Y *autograd.Variable }

var (
	add          = agent.NewFunc[pair, *autograd.Variable]("test.add")
	mul          = agent.NewFunc[pair, *autograd.Variable]("test.mul")
	mulOnce      = agent.NewFunc[pair, *autograd.Variable]("test.mulOnce")
	first        = agent.NewFunc[pair, *autograd.Variable]("test.first")
	ones         = agent.NewFunc[int, *autograd.Variable]("test.ones")
	relay        = agent.NewFunc[viaArgs, *autograd.Variable]("test.relay")
	failing      = agent.NewFunc[pair, *autograd.Variable]("test.failing")
	ignoring     = agent.NewFunc[pair, int]("test.ignoring")
	total        = agent.NewFunc[*autograd.Variable, *autograd.Variable]("test.total")
	newParameter = agent.NewFunc[float32, *autograd.Variable]("test.newParameter")
	broken       = agent.NewFunc[*autograd.Variable, *autograd.Variable]("test.broken")
)

var mulMethod = rref.NewMethod[*autograd.Variable, *autograd.Variable, *autograd.Variable]("Mul")

// viaArgs is a call that each worker on the path passes on to the next; the last one multiplies.
type viaArgs struct {
	Path []string
	Args pair
}

func functions() agent.Funcs {
	return agent.Funcs{
		add.Serve(func(ctx context.Context, p pair) (*autograd.Variable, error) { return autograd.Add(ctx, p.X, p.Y) }),
		mul.Serve(func(ctx context.Context, p pair) (*autograd.Variable, error) { return autograd.Mul(ctx, p.X, p.Y) }),
		mulOnce.Serve(func(ctx context.Context, p pair) (*autograd.Variable, error) { return autograd.Mul(ctx, p.X, p.Y) }, agent.WithOnce()),
		first.Serve(func(_ context.Context, p pair) (*autograd.Variable, error) { return p.X, nil }),
		ones.Serve(func(_ context.Context, n int) (*autograd.Variable, error) { return parameter(1, n), nil }),
		relay.Serve(func(ctx context.Context, v viaArgs) (*autograd.Variable, error) {
			if len(v.Path) == 0 {
				return autograd.Mul(ctx, v.Args.X, v.Args.Y)
			}
			return relay.Call(ctx, agent.FromContext(ctx), agent.To(v.Path[0]), viaArgs{v.Path[1:], v.Args})
		}),
		failing.Serve(func(context.Context, pair) (*autograd.Variable, error) { return nil, errWhy }),
		total.Serve(func(ctx context.Context, x *autograd.Variable) (*autograd.Variable, error) {
			return autograd.Sum(ctx, x)
		}),
		newParameter.Serve(func(_ context.Context, v float32) (*autograd.Variable, error) { return parameter(v, 2), nil }),
		ignoring.Serve(func(context.Context, pair) (int, error) { return 1, nil }),
		broken.Serve(func(ctx context.Context, x *autograd.Variable) (*autograd.Variable, error) { return breaking(ctx, x) }),
	}
}

var errWhy = fmt.Errorf("simulate error on backward pass")

// breaking returns x; its backward function fails with errWhy.
func breaking(ctx context.Context, x *autograd.Variable) (*autograd.Variable, error) {
	out, err := autograd.Apply(ctx, "BreakingBackward", []*autograd.Variable{x}, func(context.Context) ([]autograd.Value, error) {
		return []autograd.Value{x.Value()}, nil
	}, func(context.Context, []autograd.Value) ([]autograd.Value, error) { return nil, errWhy })
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

func methods() rref.Methods {
	return append(serverMethods(), mulMethod.Serve(func(x *autograd.Variable, ctx context.Context, y *autograd.Variable) (*autograd.Variable, error) {
		return autograd.Mul(ctx, x, y)
	}))
}

// constant returns a Variable of float32 elements of this value.
func constant(value float32, shape ...int) *autograd.Variable {
	t, err := tensor.Zeros(tensor.F32, shape...)
	if err == nil {
		err = tensor.Fill(t, value)
	}
	if err != nil {
		panic(err)
	}
	return autograd.Constant(t)
}

// parameter returns such a Variable, which requires a gradient.
func parameter(value float32, shape ...int) *autograd.Variable {
	x := constant(value, shape...)
	if err := x.RequireGrad(); err != nil {
		panic(err)
	}
	return x
}

// requireFilled requires that all elements of the dense tensor v are want.
func requireFilled(t require.TestingT, want float32, v autograd.Value) {
	require.NotNil(t, v.Tensor())
	x, err := v.Tensor().Contiguous()
	require.NoError(t, err)
	data, err := tensor.Data[float32](x)
	require.NoError(t, err)
	for _, v := range data {
		require.InDelta(t, want, v, 1e-5)
	}
}

// requireGradient requires that all elements of the gradient of x in c are want.
func requireGradient(t require.TestingT, want float32, c *dist.Context, x *autograd.Variable) {
	g, err := c.Gradient(x)
	require.NoError(t, err)
	require.Equal(t, x.Shape(), g.Shape())
	requireFilled(t, want, g)
}

// inContext runs f within a new Context of worker 0, which it closes then.
func (g *group) inContext(f func(ctx context.Context, c *dist.Context)) {
	g.t.Helper()
	ctx, c, err := dist.WithContext(g.t.Context(), g.agents[0])
	require.NoError(g.t, err)
	defer c.Close()
	f(ctx, c)
}

// sum returns the sum of the elements of x.
func sum(t require.TestingT, ctx context.Context, x *autograd.Variable) *autograd.Variable {
	s, err := autograd.Sum(ctx, x)
	require.NoError(t, err)
	return s
}
