package dist_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
)

// The names of nodes.
const (
	accumulateName = "torch::autograd::AccumulateGrad"
	receiveName    = "torch::distributed::autograd::RecvRpcBackward"
	sendName       = "torch::distributed::autograd::SendRpcBackward"
	addName        = "AddBackward0"
)

// requireFirstCall requires the graph of a worker that has called another one with t1 and t2, and got
// ret: the send node of the arguments leads to the leaves, and ret comes from the receive node of the
// reply.
func requireFirstCall(t require.TestingT, send, receive *autograd.Node, t1, t2, ret variable) {
	require.Equal(t, sendName, send.Name())
	edges := send.Edges()
	require.Len(t, edges, 2)
	for i, x := range []variable{t1, t2} {
		require.Equal(t, accumulateName, edges[i].Node.Name())
		require.Same(t, x, edges[i].Node.Leaf())
		require.Zero(t, edges[i].Output)
	}
	require.Equal(t, receiveName, receive.Name())
	require.Same(t, receive, ret.Node())
}

// requireExecution requires the graph of a worker that was called with two tensors and has returned
// their sum: the send node of the reply leads to the addition, and that to the receive node of the
// request, which requireExecution returns.
func requireExecution(t require.TestingT, send *autograd.Node) *autograd.Node {
	require.Equal(t, sendName, send.Name())
	edges := send.Edges()
	require.Len(t, edges, 1)
	require.Equal(t, addName, edges[0].Node.Name())
	edges = edges[0].Node.Edges()
	require.Len(t, edges, 2)
	require.Equal(t, receiveName, edges[0].Node.Name())
	require.Equal(t, receiveName, edges[1].Node.Name())
	require.Same(t, edges[0].Node, edges[1].Node)
	return edges[0].Node
}

// requireNested requires the graph of a worker that has passed two tensors on to another one, and its
// result back: the send nodes of both messages lead to receive nodes.
func requireNested(t require.TestingT, c *dist.Context) {
	sends := c.Sends()
	require.Len(t, sends, 2)
	edges := sends[0].Edges()
	require.Len(t, edges, 2)
	require.Equal(t, receiveName, edges[0].Node.Name())
	require.Equal(t, receiveName, edges[1].Node.Name())
	require.Same(t, edges[0].Node, edges[1].Node)
	back := sends[1].Edges()
	require.Len(t, back, 1)
	require.Equal(t, receiveName, back[0].Node.Name())
	require.NotSame(t, edges[0].Node, back[0].Node)
}

// requireClosed requires that w has no Context with that number, to which ctx belonged: calls with ctx
// fail.
func requireClosed(t require.TestingT, ctx context.Context, w *worker, id dist.ID) {
	_, err := id.Context(w.Agent)
	require.ErrorIs(t, err, dist.ErrNoContext)
	_, err = w.Op(ctx, w.at(1), "aten::add", constant(1), constant(1))
	require.ErrorIs(t, err, dist.ErrNoContext)
	require.Nil(t, dist.FromContext(w.ctx))
}

// graphOfCall adds two tensors on the next worker, and requires the graphs of both ends.
func graphOfCall(k kind, m mode, add func(x, y variable) step[variable]) script {
	return func(t require.TestingT, w *worker) {
		var id dist.ID
		var closed context.Context
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			id, closed = c.ID(), ctx
			t1, t2 := k.leaf(true), k.leaf(true)
			ret := exec(t, ctx, w, m, w.at(1), add(t1, t2))
			k.require(t, ret)
			w.markDone(t, ctx, c, 1)

			current := dist.FromContext(ctx)
			require.Equal(t, id, current.ID())
			sends, receives := current.Sends(), current.Receives()
			require.Len(t, sends, 1)
			require.Len(t, receives, 1)
			requireFirstCall(t, sends[0], receives[0], t1, t2, ret)

			previous := w.marked(t, 1)
			require.Len(t, previous.Sends(), 1)
			requireExecution(t, previous.Sends()[0])
			w.barrier(t)
		})
		requireClosed(t, closed, w, id)
	}
}

// nestedStep is a step that passes x and y on.
func nestedStep(x, y variable, dst, hops int) step[variable] {
	return served(nestedCall, passOn, nestedArgs{x, y, dst, hops})
}

// graphOfNestedCall has the next worker pass two tensors on to the one after it, which passes them on to
// a third one, which adds them. Each worker has a part in the Contexts of all.
func graphOfNestedCall(k kind, m mode) script {
	return func(t require.TestingT, w *worker) {
		var id dist.ID
		var closed context.Context
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			id, closed = c.ID(), ctx
			t1, t2 := k.leaf(true), k.leaf(true)
			ret := exec(t, ctx, w, m, w.at(1), nestedStep(t1, t2, w.rank+1, 1))
			k.require(t, ret)
			w.barrier(t)
			for distance := 1; distance < parityWorld; distance++ {
				w.markDone(t, ctx, c, distance)
			}
			w.barrier(t)

			current := dist.FromContext(ctx)
			require.Equal(t, id, current.ID())
			sends, receives := current.Sends(), current.Receives()
			require.Len(t, sends, 1)
			require.Len(t, receives, 1)
			requireFirstCall(t, sends[0], receives[0], t1, t2, ret)
			requireNested(t, w.marked(t, 1))
			requireNested(t, w.marked(t, 2))
			sends = w.marked(t, 3).Sends()
			require.Len(t, sends, 1)
			requireExecution(t, sends[0])
			w.barrier(t)
		})
		requireClosed(t, closed, w, id)
	}
}

// graphOfNestedCallItself has the next worker pass two tensors back to the caller, which adds them.
func graphOfNestedCallItself(k kind, m mode) script {
	return func(t require.TestingT, w *worker) {
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			t1, t2 := k.leaf(true), k.leaf(true)
			before := (w.rank - 1 + parityWorld) % parityWorld
			ret := exec(t, ctx, w, m, w.at(1), nestedStep(t1, t2, before, 0))
			k.require(t, ret)
			w.markDone(t, ctx, c, 1)

			current := dist.FromContext(ctx)
			require.Equal(t, c.ID(), current.ID())
			sends, receives := current.Sends(), current.Receives()
			require.Len(t, sends, 2)
			require.Len(t, receives, 2)
			require.Contains(t, receives, ret.Node())
			requireFirstCall(t, sends[0], ret.Node(), t1, t2, ret)
			request := requireExecution(t, sends[1])
			require.Contains(t, receives, request)
			require.NotSame(t, ret.Node(), request)

			requireNested(t, w.marked(t, 1))
			w.barrier(t)
		})
	}
}

// noGraph adds two tensors that require no gradient on the next worker, and requires that neither end
// has recorded a graph, although both have a part of the Context.
func noGraph(k kind, m mode) script {
	return func(t require.TestingT, w *worker) {
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			ret := exec(t, ctx, w, m, w.at(1), addStep(k.leaf(false), k.leaf(false)))
			k.require(t, ret)
			require.False(t, ret.RequiresGrad())
			w.markDone(t, ctx, c, 1)
			current := dist.FromContext(ctx)
			require.Empty(t, current.Sends())
			require.Empty(t, current.Receives())

			previous := w.marked(t, 1)
			require.Empty(t, previous.Sends())
			require.Empty(t, previous.Receives())
			w.barrier(t)
		})
	}
}

// TestParityGraphs has the cases about nodes and edges of graphs.
func TestParityGraphs(t *testing.T) {
	bothKinds(t, "test_graph_for_builtin_call", func(k kind) script { return graphOfCall(k, rpcSync, addStep) })
	bothKinds(t, "test_graph_for_python_call", func(k kind) script { return graphOfCall(k, rpcSync, pyAddStep) })
	bothKinds(t, "test_graph_for_builtin_remote_call", func(k kind) script { return graphOfCall(k, remote, addStep) })
	bothKinds(t, "test_graph_for_python_remote_call", func(k kind) script { return graphOfCall(k, remote, pyAddStep) })
	bothKinds(t, "test_graph_for_py_nested_call", func(k kind) script { return graphOfNestedCall(k, rpcSync) })
	bothKinds(t, "test_graph_for_py_nested_remote_call", func(k kind) script { return graphOfNestedCall(k, remote) })
	bothKinds(t, "test_graph_for_py_nested_call_itself", func(k kind) script { return graphOfNestedCallItself(k, rpcSync) })
	bothKinds(t, "test_graph_for_py_nested_remote_call_itself", func(k kind) script { return graphOfNestedCallItself(k, remote) })
	bothKinds(t, "test_no_graph_with_tensors_not_require_grad", func(k kind) script { return noGraph(k, rpcSync) })
	bothKinds(t, "test_no_graph_with_tensors_not_require_grad_remote", func(k kind) script { return noGraph(k, remote) })
}
