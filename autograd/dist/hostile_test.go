package dist_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// hugeTensor returns a tensor of many elements in the memory of one.
func hugeTensor(t *testing.T) *tensor.Tensor {
	x, err := constant(1, 1, 1).Tensor().Expand(1<<12, 1<<12)
	require.NoError(t, err)
	return x
}

func sparseTensor(t *testing.T, shape ...int) *tensor.Sparse {
	indices, err := tensor.FromSlice([]int64{0, 1}, 1, 2)
	require.NoError(t, err)
	values, err := tensor.FromSlice([]float32{1, 2}, 2)
	require.NoError(t, err)
	s, err := tensor.NewSparse(indices, values, shape...)
	require.NoError(t, err)
	return s
}

// TestHostileGradients sends false gradients. Each message gets an error, and the pass that follows has
// the right gradients.
func TestHostileGradients(t *testing.T) {
	run(t, 3, nil, func(t *testing.T, g *group) {
		x, y := parameter(2, 2), parameter(5, 2)
		good := constant(1, 2).Tensor()
		doubles, err := tensor.Zeros(tensor.F64, 2)
		require.NoError(t, err)
		numbers, err := tensor.Zeros(tensor.I64, 2)
		require.NoError(t, err)
		g.inContext(func(ctx context.Context, c *dist.Context) {
			z, err := mul.Call(ctx, g.agents[0], "worker1", pair{x, y})
			require.NoError(t, err)
			message, own, other := dist.SendNumbers(c)[0], g.agents[0].Incarnation(), g.agents[1].Incarnation()
			id := dist.PassIDOf(c, other, 1)
			foreign, unknown := id, id
			foreign.Creator, unknown.Context = other, 12345
			for _, test := range []struct {
				name string
				from int
				m    dist.Gradients
				want error
			}{
				{"too few", 1, dist.DenseGradients(id, message, good), agent.ErrProtocol},
				{"too many", 1, dist.DenseGradients(id, message, good, good, good), agent.ErrProtocol},
				{"another shape", 1, dist.DenseGradients(id, message, good, constant(1, 3).Tensor()), agent.ErrProtocol},
				{"a shape that could be summed", 1, dist.DenseGradients(id, message, good, constant(1, 7, 2).Tensor()), agent.ErrProtocol},
				{"a huge shape", 1, dist.DenseGradients(id, message, good, hugeTensor(t)), agent.ErrProtocol},
				{"another dtype", 1, dist.DenseGradients(id, message, good, doubles), agent.ErrProtocol},
				{"integers", 1, dist.DenseGradients(id, message, numbers, numbers), agent.ErrProtocol},
				{"a sparse tensor of another shape", 1, dist.Gradients{Pass: id, Message: message, Grads: []dist.Gradient{{Dense: good}, {Sparse: sparseTensor(t, 4)}}}, agent.ErrProtocol},
				{"an unknown message", 1, dist.DenseGradients(id, message+1, good, good), dist.ErrNoSend},
				{"the message of another worker", 2, dist.DenseGradients(id, message, good, good), dist.ErrNoSend},
				{"an own pass that does not run", 1, dist.DenseGradients(dist.PassIDOf(c, own, 7), message, good, good), dist.ErrFailed},
				{"the number 0", 1, dist.DenseGradients(dist.PassIDOf(c, other, 0), message, good, good), dist.ErrFailed},
				{"another creator", 1, dist.DenseGradients(foreign, message, good, good), dist.ErrNoContext},
				{"an unknown context", 1, dist.DenseGradients(unknown, message, good, good), dist.ErrNoContext},
			} {
				_, err := dist.GradientsMessage.Call(t.Context(), g.agents[test.from], "worker0", "", test.m)
				require.ErrorIs(t, err, test.want, test.name)
			}
			require.Zero(t, g.graphs[0].Metrics()["num_current_backward_passes"])
			require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
			requireGradient(t, 5, c, x)
			requireGradient(t, 2, c, y)
		})
	})
}

// TestHostileRequests sends requests about passes and Contexts that do not exist, and checks that they get
// errors and leave nothing.
func TestHostileRequests(t *testing.T) {
	run(t, 3, nil, func(t *testing.T, g *group) {
		x, y := parameter(2, 2), parameter(5, 2)
		g.inContext(func(ctx context.Context, c *dist.Context) {
			z, err := mul.Call(ctx, g.agents[0], "worker1", pair{x, y})
			require.NoError(t, err)
			liar, own := g.agents[1], g.agents[0].Incarnation()
			missing := dist.PassIDOf(c, liar.Incarnation(), 1)
			missing.Context++
			_, err = dist.FindMessage.Call(t.Context(), liar, "worker0", "", dist.FindRequest{Pass: missing, Messages: []uint64{1}})
			require.ErrorIs(t, err, dist.ErrNoContext)
			_, err = dist.SettleMessage.Call(t.Context(), liar, "worker0", "", dist.SettleRequest{Pass: missing, Round: 1})
			require.ErrorIs(t, err, dist.ErrNoContext)
			_, err = dist.SettleMessage.Call(t.Context(), liar, "worker0", "", dist.SettleRequest{Pass: dist.PassIDOf(c, own, math.MaxUint64), Round: 1})
			require.ErrorIs(t, err, dist.ErrFailed, "a pass of this worker that it has not begun")
			_, err = dist.FindMessage.Call(t.Context(), liar, "worker0", "", dist.FindRequest{Pass: dist.PassIDOf(c, own, 9), Messages: make([]uint64, 1000)})
			require.ErrorIs(t, err, dist.ErrFailed)
			var passes []dist.PassID // of workers that do not exist
			for i := range 2000 {
				passes = append(passes, dist.PassIDOf(c, agent.Incarnation{1, byte(i), byte(i >> 8)}, math.MaxUint64))
			}
			_, err = dist.CleanupMessage.Call(t.Context(), liar, "worker0", "", dist.CleanupRequest{Owner: own, Passes: passes})
			require.NoError(t, err)
			_, err = dist.CleanupMessage.Call(t.Context(), liar, "worker0", "", dist.CleanupRequest{
				Owner: own, Contexts: []dist.CleanedContext{{ID: c.ID(), Creator: liar.Incarnation()}, {ID: 5, Creator: own}},
			})
			require.NoError(t, err)
			require.NoError(t, c.Backward(ctx, sum(t, ctx, z)), "the Context is there")
			requireGradient(t, 5, c, x)
		})
	})
}

// TestHostileReports checks reports of waiting messages that cannot be true.
func TestHostileReports(t *testing.T) {
	one := dist.PassChange{Worker: "worker1", Incarnation: agent.Incarnation{1}, Waiting: 1}
	less, huge := one, one
	less.Waiting, huge.Waiting = -2, math.MaxInt
	report := func(all ...dist.PassChange) dist.PassReport { return dist.PassReport{Changes: all} }
	require.NoError(t, dist.CheckReports(report(one), report(one), report(less)))
	require.ErrorIs(t, dist.CheckReports(report(one, less)), agent.ErrProtocol)
	require.ErrorIs(t, dist.CheckReports(report(huge, huge)), agent.ErrProtocol)
	huge.Waiting = math.MinInt
	require.ErrorIs(t, dist.CheckReports(report(huge)), agent.ErrProtocol)
	var many dist.PassReport
	for i := range 1<<16 + 1 {
		many.Changes = append(many.Changes, dist.PassChange{Incarnation: agent.Incarnation{byte(i), byte(i >> 8), byte(i >> 16)}, Waiting: 1})
	}
	require.ErrorIs(t, dist.CheckReports(many), agent.ErrProtocol)
}

// TestSecondCopy sends a gradient again while the pass that it is part of computes: the copy gets an
// error, and the pass does not end before its gradients have come.
func TestSecondCopy(t *testing.T) {
	var more sync.Map // names of types that are sent twice
	run(t, 3, func(_ int, c *agent.Config, _ *dist.Options) {
		c.FaultHook = func(m *agent.Message) agent.Fault {
			if _, ok := more.Load(m.Type); ok && m.Kind == agent.KindRequest {
				return agent.Fault{Extra: 1}
			}
			return agent.Fault{}
		}
	}, func(t *testing.T, g *group) {
		succeeded := 0
		for range 50 {
			x, y := parameter(2, 2), parameter(5, 2)
			g.inContext(func(ctx context.Context, c *dist.Context) {
				z, err := relay.Call(ctx, g.agents[0], "worker1", viaArgs{[]string{"worker2", "worker0", "worker1"}, pair{x, y}})
				require.NoError(t, err)
				more.Store(dist.GradientsMessage.Type(), true)
				defer more.Clear()
				if err := c.Backward(ctx, sum(t, ctx, z)); err != nil {
					require.True(t, isExpected(err), "%v", err)
					return
				}
				succeeded++
				requireGradient(t, 5, c, x)
				requireGradient(t, 2, c, y)
			})
		}
		require.NotZero(t, succeeded)
	})
}

// expected are the errors that passes and calls may have when messages are lost or repeated.
var expected = []error{
	dist.ErrNoContext, dist.ErrNoSend, dist.ErrFailed, dist.ErrRunning, dist.ErrRepeated, agent.ErrTimeout, agent.ErrUnreachable,
	agent.ErrEvicted, agent.ErrCallerGone, context.Canceled, context.DeadlineExceeded,
}

func isExpected(err error) bool {
	return slices.ContainsFunc(expected, func(e error) bool { return errors.Is(err, e) })
}

// TestLimits checks the bounds of Contexts and bytes of each peer.
func TestLimits(t *testing.T) {
	run(t, 3, func(_ int, _ *agent.Config, o *dist.Options) { o.MaxContexts, o.MaxBytes = 2, 4000 }, func(t *testing.T, g *group) {
		call := func(from int, v variable) (*dist.Context, error) {
			ctx, c, err := dist.WithContext(t.Context(), g.agents[from])
			require.NoError(t, err)
			_, err = total.Call(ctx, g.agents[from], "worker1", v)
			return c, err
		}
		var all []*dist.Context
		for range 2 {
			c, err := call(0, parameter(1, 100)) // 400 bytes, and 1024
			require.NoError(t, err)
			all = append(all, c)
		}
		c, err := call(0, parameter(1, 1))
		require.ErrorIs(t, err, agent.ErrOverloaded, "two Contexts")
		require.NoError(t, c.Close())
		c, err = call(2, parameter(1, 1))
		require.NoError(t, err, "another worker")
		require.NoError(t, c.Close())
		for _, x := range []variable{parameter(1, 100), constant(1, 100)} { // the graph may keep both
			_, err = total.Call(all[0].In(t.Context()), g.agents[0], "worker1", x)
			require.ErrorIs(t, err, agent.ErrOverloaded, "4272 bytes")
		}
		require.Len(t, all[0].Sends(), 1, "the node of a call that has failed is dropped")
		for _, c := range all {
			require.NoError(t, c.Close())
		}
		g.requireEmpty()
		c, err = call(0, parameter(1, 250))
		require.NoError(t, err, "what ended Contexts took is free")
		require.NoError(t, c.Close())
		g.requireNoTables()
	})
}

// requireNoTables waits until the tables of all workers are empty.
func (g *group) requireNoTables() {
	g.t.Helper()
	require.EventuallyWithT(g.t, func(t *assert.CollectT) {
		for i, a := range g.graphs {
			assert.Equal(t, map[string]int{"contexts": 0, "usages": 0, "cleanups": 0}, a.Tables(), "worker%d", i)
		}
	}, testwait.Limit, time.Millisecond, "something is left")
}
