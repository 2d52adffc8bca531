// Package dist computes gradients through graphs that span workers: the calls of an agent that are
// made within a [Context] record which tensors they carry, and [Context.Backward] sends gradients back
// the way that the tensors came.
//
//	a, err := agent.Join(ctx, agent.Config{ /* ... */ Extensions: []agent.Extension{refs, dist.New(dist.Options{})}})
//	ctx, c, err := dist.WithContext(ctx, a)
//	defer c.Close()
//	y, err := forward.Call(ctx, a, "worker1", x) // x and y are *autograd.Variable
//	loss, err := autograd.Sum(ctx, y)
//	err = c.Backward(ctx, loss)
//	gradient, err := c.Gradient(w) // of a leaf of this worker
//
// # Contexts
//
// A Context belongs to the worker that has made it, and travels with the context.Context in the calls
// that are made with it, also in nested ones: a handler runs within the Context of its caller, for
// which it may make calls of its own. Gradients of leaves stay on their worker, in the Context, until it
// is closed. Close ends the Context on all workers.
//
// # Graphs
//
// A message that carries Variables which require gradients has a send node at its sender, and a receive
// node at its receiver, with the same number. A pass through the graph begins at the roots. A receive
// node sends the gradients that come to it back to the send node, where the pass goes on. This is the
// FAST mode of PyTorch: each send node waits for gradients, so the results of all calls that take
// Variables must be used. A pass fails with an error that names a call whose result it does not need,
// unless [PassOptions].UnusedZero is set.
//
// docs/autograd.md explains the messages.
package dist
