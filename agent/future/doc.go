// Package future provides values that are computed asynchronously, such as the results of
// calls under way.
//
//	f := future.New[int]()
//	go func() { f.Set(compute()) }()
//	n, err := f.Wait(ctx)
//
// A [Future] is completed once, with a value or an error, by any goroutine that has it. Any
// number of goroutines may wait for it, before and after.
//
// Follow-up work needs no waiting goroutine: [Future.OnDone] runs a function, [Then] makes a
// future of its result, and [ThenFuture] is for functions that return futures themselves.
// These functions run one after the other, in the order of their addition, on a goroutine of
// the future, never on that of the caller, which may hold locks or read from a network. One
// that blocks delays only later functions of the same future. A panic does not end the
// process.
//
// For several futures, [All] returns a future of all of them, [WaitAll] waits and returns at
// the first error, and [Await] and [Settle] wait for futures of different types.
//
// [Future.Cancel] makes a future fail and notifies its producer.
//
// A value in the memory of a device may be set as soon as the work that computes it is
// enqueued: [Future.SetOn] records events on the streams, and [Future.Wait] makes the streams
// of its context ([device.WithStream]) wait for them. The host does not wait.
package future
