// Package agent makes a group of named workers that call each other's functions
// with tensors.
//
//	var Add = agent.NewFunc[AddArgs, *tensor.Tensor]("example.add")
//
//	a, err := agent.Join(ctx, agent.Config{
//		Name: "worker0", Rank: 0, WorldSize: 2,
//		Rendezvous: "tcp://127.0.0.1:29500",
//		Funcs:      agent.Funcs{Add.Serve(add)},
//	})
//	sum, err := Add.Call(ctx, a, "worker1", AddArgs{A: x, B: y})
//	later := Add.Go(ctx, a, "worker1", AddArgs{A: x, B: y})
//
// Workers find each other through a store (package store), and have one pipe for
// each pair that talks, over the best path that the two share. What can be called is
// what a worker lists. Arguments and results are Go values; the tensors in them
// travel as tensors of the pipe do (package codec).
//
// # Calls
//
// A call ends with the result, or with an error that says why there is none; a
// worker that dies ends all calls to it. The deadline travels along, and the
// handler's context ends when nobody waits for its answer any more.
//
// A handler runs on a goroutine for which nobody waits, of which Config.MaxHandlers run at
// once; one that waits for calls of its own lets another one run meanwhile. Pass on its
// context, so that this is known.
//
// # Extending
//
// What is built on calls needs nothing of the inside: a Handler serves messages of a
// type of its own, an Interceptor sees all messages and adds sections to them, and
// codec.Hook encodes values in its own way.
package agent
