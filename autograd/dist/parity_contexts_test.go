package dist_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// serving returns the configuration of workers that also serve the functions in f.
func serving(f agent.Funcs) configuration {
	return func(_ int, c *agent.Config, _ *dist.Options) { c.Funcs = append(c.Funcs, f...) }
}

// requireNoContext requires that err reports that there is no Context with that number.
func requireNoContext(t require.TestingT, id dist.ID, err error) {
	require.ErrorIs(t, err, dist.ErrNoContext)
	require.ErrorContains(t, err, fmt.Sprintf("Could not find autograd context with id: %d", uint64(id)))
}

// TestParityContexts has the cases of Contexts on the worker that makes them.
func TestParityContexts(t *testing.T) {
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_autograd_context", func(t require.TestingT, w *worker) {
		const maxAutoIncrement dist.ID = 281474976710655
		require.Equal(t, maxAutoIncrement+dist.ID(w.Self().Rank)<<48, w.graph.MaxID())
		var ids []dist.ID
		for range 200 {
			w.inContext(t, func(ctx context.Context, c *dist.Context) {
				found, err := c.ID().Context(w.Agent)
				require.NoError(t, err)
				require.Same(t, c, found)
				require.Same(t, c, dist.FromContext(ctx))
				require.EqualValues(t, w.Self().Rank, c.ID()>>48)
				require.LessOrEqual(t, c.ID(), w.graph.MaxID())
				ids = append(ids, c.ID())
			})
		}
		for _, id := range ids {
			_, err := id.Context(w.Agent)
			requireNoContext(t, id, err)
		}
	})
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_nested_context", func(t require.TestingT, w *worker) {
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			_, _, err := dist.WithContext(ctx, w.Agent)
			require.ErrorIs(t, err, dist.ErrNested)
			require.ErrorContains(t, err, "Already have an autograd context id for this thread")
			require.EqualValues(t, 1, w.graph.Metrics()["num_autograd_contexts"])
		})
	})
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_error_in_context", func(t require.TestingT, w *worker) {
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			_, err := w.Op(ctx, w.next(), "aten::matmul", random(3, 3), random(6, 6))
			require.ErrorContains(t, err, "mat1 and mat2 shapes cannot be multiplied (3x3 and 6x6)")
			var remote *agent.RemoteError
			require.ErrorAs(t, err, &remote)
			require.Empty(t, c.Sends(), "the failed call has no send node")
		})
	})
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_worker_ids_recorded", recordedWorkers)
}

// recordedWorkers calls all other workers with tensors that require no gradient, and then with some that
// do. Both times the Context has the workers.
func recordedWorkers(t require.TestingT, w *worker) {
	var others []string
	for _, to := range w.others() {
		others = append(others, string(to))
	}
	slices.Sort(others)
	w.inContext(t, func(ctx context.Context, c *dist.Context) {
		require.Empty(t, c.KnownWorkers())
		t1, t2 := constant(1, 3, 3), constant(0, 3, 3)
		callAll := func() {
			for _, to := range w.others() {
				x, err := agent.One[variable](w.Op(ctx, to, "aten::add", t1, t2))
				require.NoError(t, err)
				require.Equal(t, t1.RequiresGrad(), x.RequiresGrad())
				_, err = setDone.Call(ctx, w.Agent, to, mark{c.ID(), 1})
				require.NoError(t, err)
			}
		}
		callAll()
		require.Equal(t, others, c.KnownWorkers())
		require.NoError(t, t1.RequireGrad())
		require.NoError(t, t2.RequireGrad())
		callAll()
		require.Equal(t, others, c.KnownWorkers())
		require.Len(t, c.Sends(), len(others))
	})
}

// TestParityCleanUpNoTensors has the clean-up of Contexts whose calls carry no tensors.
func TestParityCleanUpNoTensors(t *testing.T) {
	scalarAdd := agent.NewFunc[[2]int, int]("my_scalar_add")
	configure := serving(agent.Funcs{scalarAdd.Serve(func(ctx context.Context, v [2]int) (int, error) {
		if dist.FromContext(ctx) == nil {
			return 0, dist.ErrNoContext
		}
		return v[0] + v[1], nil
	})})
	add := func(t require.TestingT, ctx context.Context, w *worker, to agent.To) {
		sum, err := scalarAdd.Call(ctx, w.Agent, to, [2]int{1, 1})
		require.NoError(t, err)
		require.Equal(t, 2, sum)
	}
	inOneProcessWith(t, "dist_autograd/DistAutogradTest.test_context_cleanup_no_tensors", configure, cleansUp(false, add))
}

// TestParityGradOnlyOnReturnValue has the cases in which only the result of a function requires a
// gradient: a leaf of the worker that is called.
func TestParityGradOnlyOnReturnValue(t *testing.T) {
	returning := agent.NewFunc[agent.None, variable]("ret_requires_grad")
	for name, m := range map[string]mode{"test_grad_only_on_return_value": rpcSync, "test_grad_only_on_return_value_remote": remote} {
		leaves := make([]variable, parityWorld)
		configure := func(rank int, c *agent.Config, _ *dist.Options) {
			leaves[rank] = parameter(1, 3, 3)
			c.Funcs = append(c.Funcs, returning.Serve(func(context.Context, agent.None) (variable, error) { return leaves[rank], nil }))
		}
		inOneProcessWith(t, "dist_autograd/DistAutogradTest."+name, configure, func(t require.TestingT, w *worker) {
			w.inContext(t, func(ctx context.Context, c *dist.Context) {
				ret := exec(t, ctx, w, m, w.at(1), served(returning, nil, agent.None{}))
				require.NoError(t, c.Backward(ctx, sum(t, ctx, ret)))
				w.markDone(t, ctx, c, 1)
				grads := w.marked(t, 1).Gradients()
				require.Len(t, grads, 1)
				require.Contains(t, grads, leaves[w.rank])
				requireSame(t, constant(1, ret.Shape()...).Value(), grads[leaves[w.rank]])
				require.Empty(t, c.Gradients(), "the leaf is not on this worker")
				w.barrier(t) // the Context of the worker before this one is open until then
			})
		})
	}
}

// ownGradient is a reference to a leaf, and the gradient that its owner has for it in a Context.
type ownGradient struct {
	ID   dist.ID
	Ref  *rref.Ref[variable]
	Grad variable
}

// TestParityContextAcrossCalls has the case of a value that is made by a slow function outside of a
// Context, and fetched within one: the reply belongs to the Context.
func TestParityContextAcrossCalls(t *testing.T) {
	slowAdd := agent.NewFunc[pair, variable]("slow_add")
	hasGradient := agent.NewFunc[ownGradient, bool]("has_gradient")
	configure := serving(agent.Funcs{
		slowAdd.Serve(func(ctx context.Context, p pair) (variable, error) {
			<-time.NewTimer(time.Second).C // in simulated time
			sum, err := autograd.Add(ctx, p.X, p.Y)
			if err != nil {
				return nil, err
			}
			return sum, sum.RequireGrad()
		}),
		hasGradient.Serve(func(ctx context.Context, v ownGradient) (bool, error) {
			x, err := v.Ref.Local()
			if err != nil {
				return false, err
			}
			c, err := v.ID.Context(agent.FromContext(ctx))
			if err != nil {
				return false, err
			}
			g, err := c.Gradient(x)
			if err != nil {
				return false, err
			}
			return slices.Equal(elements(panicT{}, v.Grad.Value()), elements(panicT{}, g)), nil
		}),
	})
	inSimulatedTime(t, "dist_autograd/DistAutogradTest.test_thread_local_context_id", configure, func(t require.TestingT, w *worker) {
		t1, t2 := autograd.Constant(randomTensor[float32](3, 3)), autograd.Constant(randomTensor[float32](3, 3))
		t3, err := autograd.Add(w.ctx, t1, t2)
		require.NoError(t, err)
		require.NoError(t, t3.RequireGrad())
		require.NoError(t, autograd.Backward(w.ctx, []variable{sum(t, w.ctx, t3)}))
		f := rref.Remote(w.ctx, w.Agent, w.at(1), slowAdd, pair{t1, t2})
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			begun := time.Now()
			x, err := f.ToHere(ctx)
			require.NoError(t, err)
			require.Equal(t, time.Second, time.Since(begun), "the value was made after the request for it")
			require.NoError(t, c.Backward(ctx, sum(t, ctx, x)))
			same, err := hasGradient.Call(ctx, w.Agent, w.at(1), ownGradient{c.ID(), f, autograd.New(t3.Grad())})
			require.NoError(t, err)
			require.True(t, same)
		})
		require.NoError(t, f.Release(w.ctx))
	})
}
