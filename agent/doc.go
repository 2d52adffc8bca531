// Package agent forms groups of named workers, which call each other's functions with tensors.
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
// Workers find each other through a store (package store). Two workers that call each other
// share one pipe, over the best path between them. A worker serves the functions listed in its
// Config. Arguments and results are Go values (package codec); tensors in them are sent as
// tensors of the pipe.
//
// # Calls
//
// A call returns the result or an error; all calls to a worker that dies fail. The deadline of
// the caller's context applies to the handler too, whose context ends when the caller no longer
// waits.
//
// A handler runs on a goroutine of its own; at most Config.MaxHandlers run at once. A handler
// that waits for its own calls does not count: pass its context to these calls.
//
// # Streams
//
// A streaming call sends many values in place of one argument or one result: ServerStream to the
// caller, ClientStream from the caller, BidiStream both ways.
//
//	var Generate = agent.NewServerStream[Prompt, Token]("example.generate")
//
//	for token, err := range Generate.Call(ctx, a, "worker1", prompt) {
//
// Leaving the loop cancels the call. Send blocks while the receiver has Limits.StreamBytes of
// values that it has not used; other calls go on. The timeout is for idleness. A stream has one
// handler, and Shutdown waits for it, as for any call.
//
// # Members
//
// Agent.Watch reports the members of the group and their changes: workers that join, are lost,
// leave, restart or are removed. Agent.WatchAll also keeps a pipe to each of them, by which a loss
// is noticed without a call. Inspect returns the status of all members, without joining the group.
//
// # Memory of tensors
//
// Received tensors are in memory of Config.Allocator. WithInto receives those of one result into
// memory that the caller has, and WithArgsInto those of the arguments of a function into memory
// that the worker chooses for each request, such as pages of a pool. AfterReply reports when the
// memory of a result is free at the worker that was called.
//
// # Extending
//
// Extensions use the exported API: a Handler serves messages of a new type, an Interceptor sees
// all messages and adds sections to them, a codec.Hook replaces the encoding of values.
package agent
