// Package future has values that come later: results of calls that are under
// way, and whatever an application makes of them.
//
//	f := future.New[int]()
//	go func() { f.Set(compute()) }()
//	n, err := f.Wait(ctx)
//
// A [Future] is completed once, with a value or with an error, by whoever holds
// it. Any number of goroutines may wait, before and after.
//
// Work to be done afterwards needs no goroutine that waits: [Future.OnDone] runs
// a function, [Then] makes a future of its result, [ThenFuture] is for functions
// that are asynchronous themselves. Such functions run one after the other, in
// the order they were added, on a goroutine of the future: never on that of the
// caller, who may hold locks or be reading from a network. One that blocks holds
// up those behind it, of the same future alone. A panic in one does not end the
// process.
//
// Several futures: [All] is a future of them all, [WaitAll] waits and stops at the
// first error, [Await] and [Settle] wait for futures of different types.
//
// [Future.Cancel] gives a future up and tells its producer.
//
// A value in the memory of a device may be handed on when the work that makes it
// is enqueued: [Future.SetOn] notes the streams, and [Future.Wait] makes the
// streams of its context ([device.WithStream]) wait for that work. No host waits.
package future
