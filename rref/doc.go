// Package rref adds remote references to agents: a value stays on the worker that made it, the owner,
// and is used from any other.
//
//	var Forward = rref.NewMethod[*Model, *tensor.Tensor, *tensor.Tensor]("Forward")
//
//	refs := rref.New(rref.Options{Methods: rref.Methods{Forward.Serve((*Model).Forward)}})
//	a, err := agent.Join(ctx, agent.Config{
//		// ...
//		Extensions: []agent.Extension{refs},
//	})
//	m := rref.Remote(ctx, a, "worker1", NewModel, spec) // returns at once
//	y, err := Forward.Call(ctx, m, x)                   // runs on worker1
//	err = m.Release(ctx)
//
// A Method is of values of the application, an Operator of tensors.
//
// A reference may be sent to any worker, in arguments and results of calls, also within other values.
// The owner keeps the value as long as a worker has a reference that the owner has confirmed. A
// handler starts when all references in its arguments are confirmed.
//
// A worker keeps its references as long as the owner hears from it: the owner grants each worker one
// lease for all of them, and drops them when it has heard nothing for Options.Lease. The worker then
// gets ErrFenced, and never another value. If the owner has left the group or has restarted, its
// references fail with an OwnerError.
//
// References that form a cycle across workers are not collected. Shutdown releases them, and logs them.
//
// docs/rref.md explains the protocol.
package rref
