// Package bench measures pipes between two processes, and the C++ library in the
// same way in the same run.
//
// A [Spec] says what to measure: the path, the size of the messages, how many.
// Two [Subject]s can be measured: [Go] is this library, [Libtensorpipe] a C++
// program on the C++ library, whose sources are in peers/libtensorpipe and which
// is compiled where it is used. [Compare] measures two subjects in turn, several
// times, and is the only way to a ratio: both sides of it come from one run. In the
// same run it can measure [Yardsticks], which say what the machine can do: a copy
// in memory, and plain TCP connections.
//
// Which transports and channels there are is the caller's to say, by a [Catalog].
// A path that does not exist on a machine is a [PathError].
//
// # What is measured
//
// A round trip begins before the message is written and ends when its echo has
// been read into memory that the caller owns. The receiver reads into memory of
// its own and sends the echo from there. Trips are warm, one right behind the
// other, or cold, each after two milliseconds in which nothing happens.
//
// One way, a number of messages is in flight at once. The clock runs from before
// the first write of a batch until the receiver has said that it has all of it.
// CPU time is that of both processes in the same time.
//
// Every message of a batch has memory of its own at both ends. Between batches,
// while no clock runs, every byte that came is compared with a pattern that
// depends on the number of the message and the place of the byte. What kind of
// memory it is is part of the Spec.
//
// # Processes
//
// The second process is the same program again: a [Program] says how to start it
// so that it calls [RunChild]. It has no descriptors but its standard streams,
// and ends when its stdin does, so that it never outlives the first one.
package bench
