package dist_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
)

const simulatedText = "Simulate error on backward pass"

var errSimulated = fmt.Errorf("the backward function: %s", simulatedText)

// backwardError is an operator that returns its argument. Its backward function fails, unless off.
type backwardError struct{ off atomic.Bool }

func (e *backwardError) apply(ctx context.Context, x variable) (variable, error) {
	out, err := autograd.Apply(ctx, "SimulateBackwardError", []variable{x},
		func(context.Context) ([]autograd.Value, error) { return []autograd.Value{x.Value()}, nil },
		func(_ context.Context, grads []autograd.Value) ([]autograd.Value, error) {
			if e.off.Load() {
				return grads, nil
			}
			return nil, errSimulated
		})
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// product is a function that multiplies x, y, their sum, and the sum passed through e.
func (e *backwardError) product(ctx context.Context, p pair) (variable, error) {
	t3, err := autograd.Add(ctx, p.X, p.Y)
	if err != nil {
		return nil, err
	}
	t4, err := e.apply(ctx, t3)
	if err != nil {
		return nil, err
	}
	return autograd.MultiDot(ctx, []variable{p.X, p.Y, t3, t4})
}

// relayedPair is the argument of a function that calls another one on the worker Dst.
type relayedPair struct {
	Pair pair
	Dst  string
}

var (
	failingProduct       = agent.NewFunc[pair, variable]("python_udf_with_backward_error")
	nestedFailingProduct = agent.NewFunc[relayedPair, variable]("nested_rpc_call_backward_error")
)

// multiplyNested multiplies the product and the sum of its arguments, and what failingProduct makes of
// both on another worker.
func multiplyNested(ctx context.Context, v relayedPair) (variable, error) {
	t1, err := autograd.Mul(ctx, v.Pair.X, v.Pair.Y)
	if err != nil {
		return nil, err
	}
	t2, err := autograd.Add(ctx, t1, v.Pair.Y)
	if err != nil {
		return nil, err
	}
	res, err := failingProduct.Call(ctx, agent.FromContext(ctx), agent.To(v.Dst), pair{t1, t2})
	if err != nil {
		return nil, err
	}
	return autograd.MultiDot(ctx, []variable{t1, t2, res})
}

// requireSimulated requires that err is that of a backwardError on the worker that to addresses.
func requireSimulated(t require.TestingT, w *worker, to agent.To, err error) {
	require.Regexp(t, "Error on Node [0-9]+: .*"+simulatedText, err)
	where, found := w.Worker(w.ctx, to)
	require.NoError(t, found)
	var node *dist.NodeError
	for cause := err; errors.As(cause, &node); cause = node.Err {
		where.Rank, where.Name = node.Rank, node.Worker // the innermost
	}
	require.Equal(t, string(to), where.Name)
	require.Regexp(t, fmt.Sprintf("Error on Node %d: .*%s", where.Rank, simulatedText), err)
}

// TestParityBackwardErrors has the cases in which a backward function fails: on the worker of the root,
// at the far end of the graph, and on a worker that another one has called.
func TestParityBackwardErrors(t *testing.T) {
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_backward_autograd_engine_error", func(t require.TestingT, w *worker) {
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			t1, t2 := random(3, 3), random(3, 3)
			s, err := autograd.Add(ctx, t1, t2)
			require.NoError(t, err)
			same, err := autograd.Add(ctx, t1, t2)
			require.NoError(t, err)
			tmp, err := autograd.Mul(ctx, s, same)
			require.NoError(t, err)
			t3, err := (&backwardError{}).apply(ctx, tmp)
			require.NoError(t, err)
			val := exec(t, ctx, w, rpcSync, w.next(), addStep(t2, t3))
			val = exec(t, ctx, w, rpcSync, w.next(), mulStep(val, t2))
			val = exec(t, ctx, w, rpcSync, w.next(), matMulStep(val, t2))
			val = exec(t, ctx, w, rpcSync, w.next(), divStep(val, t2))
			requireSimulated(t, w, w.Self().To(), c.Backward(ctx, sum(t, ctx, val)))
		})
	})
	configure := serving(agent.Funcs{failingProduct.Serve((&backwardError{}).product), nestedFailingProduct.Serve(multiplyNested)})
	inOneProcessWith(t, "dist_autograd/DistAutogradTest.test_backward_python_udf_error", configure, func(t require.TestingT, w *worker) {
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			to, dst := w.next(), w.next()
			loss, err := nestedFailingProduct.Call(ctx, w.Agent, to, relayedPair{pair{random(3, 3), random(3, 3)}, string(dst)})
			require.NoError(t, err)
			requireSimulated(t, w, dst, c.Backward(ctx, sum(t, ctx, loss)))
		})
	})
}

// TestParityRepeatedErrors has the case of a graph through which 50 passes fail and 49 succeed.
func TestParityRepeatedErrors(t *testing.T) {
	failures := make([]backwardError, parityWorld)
	configure := func(rank int, c *agent.Config, _ *dist.Options) {
		c.Funcs = append(c.Funcs, failingProduct.Serve(failures[rank].product))
	}
	const passes = 100
	inOneProcessWith(t, "dist_autograd/DistAutogradTest.test_multiple_backward_with_errors", configure, func(t require.TestingT, w *worker) {
		t1, t2 := random(3, 3), random(3, 3)
		retain := dist.PassOptions{RetainGraph: true}
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			to := w.next()
			res, err := failingProduct.Call(ctx, w.Agent, to, pair{t1, t2})
			require.NoError(t, err)
			loss := sum(t, ctx, res)
			for range passes / 2 {
				requireSimulated(t, w, to, c.BackwardWith(ctx, retain, loss))
			}
			require.Empty(t, c.Gradients())
			w.barrier(t)
			failures[w.rank].off.Store(true)
			w.barrier(t)
			local, err := failures[w.rank].product(ctx, pair{t1, t2})
			require.NoError(t, err)
			localLoss := sum(t, ctx, local)
			for range passes/2 - 1 {
				require.NoError(t, c.BackwardWith(ctx, retain, loss))
				require.NoError(t, autograd.Backward(ctx, []variable{localLoss}, autograd.RetainGraph()))
			}
			w.barrier(t)
			grads := c.Gradients()
			require.Len(t, grads, 2)
			requireSame(t, t1.Grad(), grads[t1])
			requireSame(t, t2.Grad(), grads[t2])
		})
	})
}

// TestParityWrongRoots has the cases of passes that cannot begin, and of calls that the roots do not need.
func TestParityWrongRoots(t *testing.T) {
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_backward_without_context", func(t require.TestingT, w *worker) {
		res := exec(t, w.ctx, w, rpcSync, w.next(), addStep(random(3, 3), random(3, 3)))
		const id = dist.ID(100)
		missing, err := id.Context(w.Agent)
		requireNoContext(t, id, err)
		require.ErrorIs(t, missing.Backward(w.ctx, sum(t, w.ctx, res)), dist.ErrNoContext)
	})
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_backward_invalid_args", func(t require.TestingT, w *worker) {
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			err := c.Backward(ctx, nil)
			require.ErrorIs(t, err, dist.ErrRoots)
			require.ErrorContains(t, err, "a root is nil")
			var none *dist.Context
			require.ErrorIs(t, none.Backward(ctx, nil), dist.ErrNoContext)
			for text, roots := range map[string][]variable{
				"No tensors provided for gradient computation": nil,
				"requires_grad not set on":                     {autograd.Constant(randomTensor[float32](3, 3))},
				"is not a scalar, all roots need to be scalar": {random(3, 3)},
				"does not have a valid gradient function":      {random(1)},
			} {
				err := c.Backward(ctx, roots...)
				require.ErrorIs(t, err, dist.ErrRoots)
				require.ErrorContains(t, err, text)
			}
			require.Empty(t, c.Gradients())
		})
	})
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_backward_unused_send_function", unusedCall)
}

// unusedCall requires that a pass which needs no result of a call fails with an error that names the
// call, and that UnusedZero makes it go on.
func unusedCall(t require.TestingT, w *worker) {
	w.inContext(t, func(ctx context.Context, c *dist.Context) {
		t1, t2 := random(3, 3), random(3, 3)
		to := w.next()
		exec(t, ctx, w, rpcSync, to, addStep(t1, t2))
		val, err := autograd.Mul(ctx, t1, t2)
		require.NoError(t, err)
		err = c.Backward(ctx, sum(t, ctx, val))
		require.ErrorIs(t, err, dist.ErrUnused)
		require.ErrorContains(t, err, fmt.Sprintf("the result of aten::add for %s, sent by %s", w.Self().Name, to))
	})
	w.inContext(t, func(ctx context.Context, c *dist.Context) {
		t1, t2 := random(3, 3), random(3, 3)
		exec(t, ctx, w, rpcSync, w.next(), addStep(t1, t2))
		val, err := autograd.Mul(ctx, t1, t2)
		require.NoError(t, err)
		require.NoError(t, c.BackwardWith(ctx, dist.PassOptions{UnusedZero: true}, sum(t, ctx, val)))
		grads := c.Gradients()
		require.Len(t, grads, 2)
		requireSame(t, t2.Value(), grads[t1])
		requireSame(t, t1.Value(), grads[t2])
	})
}

// TestParityClosedDuringBackward has the case of Contexts that all workers close while their passes run.
func TestParityClosedDuringBackward(t *testing.T) {
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_clean_context_during_backward", func(t require.TestingT, w *worker) {
		ctx, c, err := dist.WithContext(w.ctx, w.Agent)
		require.NoError(t, err)
		for distance := 1; distance < parityWorld; distance++ {
			w.markDone(t, ctx, c, distance)
		}
		w.barrier(t)
		require.Len(t, w.marks.all(), parityWorld-1)
		t1 := random(3, 3)
		x := t1
		for range 100 {
			x = exec(t, ctx, w, rpcSync, w.next(), addStep(x, x))
		}
		closed := false
		out, err := autograd.Apply(ctx, "MyBackwardFunc", []variable{x},
			func(context.Context) ([]autograd.Value, error) { return []autograd.Value{x.Value()}, nil },
			func(_ context.Context, grads []autograd.Value) ([]autograd.Value, error) {
				w.barrier(t) // all workers compute
				require.NoError(t, c.Close())
				w.requireCleanedUp(t)
				closed = true
				return grads, nil
			})
		require.NoError(t, err)
		require.Len(t, c.Sends(), 100)
		const id = dist.ID(100)
		_, err = id.Context(w.Agent)
		requireNoContext(t, id, err)
		requireNoContext(t, c.ID(), c.Backward(ctx, sum(t, ctx, out[0])))
		require.True(t, closed)
		w.barrier(t)
	})
}
