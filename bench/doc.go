// Package bench measures pipes between two processes, and the C++ library in the same way in the
// same run.
//
// A [Spec] describes a measurement: the path, and the size and number of the messages. There are
// two [Subject]s: [Go] is this library, [Libtensorpipe] a C++ program on the C++ library; its
// sources are in peers/libtensorpipe and are compiled when needed. [Compare] measures two
// subjects alternately, several times. Ratios come only from it, so that both figures are of
// one run. In the same run it can measure [Yardsticks], which show the limits of the machine: a
// copy in memory, and plain TCP connections.
//
// The caller defines the available transports and channels by a [Catalog]. A path that does not
// work on a machine is reported as a [PathError].
//
// # What is measured
//
// A round trip begins before the message is written and ends when its echo has been read into
// memory of the caller. The receiver reads into its own memory and sends the echo from there.
// Warm trips follow one another immediately; cold ones come after two milliseconds without
// activity.
//
// One way, several messages are in flight. The time is from before the first write of a batch
// until the receiver has confirmed that all have arrived. The CPU time is that of both processes
// in this time.
//
// Every message of a batch has its own memory at both ends. Between batches, while no time is
// measured, every received byte is compared with a pattern that depends on the number of the
// message and the position of the byte. The kind of memory is part of the Spec.
//
// With Spec.Device the tensors are in memory of GPUs. A round trip then ends when the echo is in that
// memory: the client waits for the stream of the echo, and the server waits for no stream. One way, the
// server waits for its streams once at the end of a batch, before it confirms. Each message in flight has
// a stream of its own, up to 16. The hand-over time of a round trip is from before the Write until the
// server's Read has returned, by the clock of the machine; neither waits for a GPU. The yardstick
// [DeviceCopy] is the driver's copy between the same GPUs.
//
// # Many pipes
//
// A [GrowthSpec] describes what many pipes cost: a process, the hub, opens a number of pipes to one
// or more others, and is observed while idle and in round trips of 8 bytes. [CompareGrowth] measures
// two libraries alternately. Bytes, descriptors and threads are read from the system by the calling
// process, after the hub has released unused memory, and are those of the hub minus those
// before its first pipe. CPU time is that of all processes. Every echo is compared.
//
// # Processes
//
// The second process runs the same program: a [Program] describes how to start it so that it calls
// [RunChild]. It has no descriptors but its standard streams, and ends when its stdin does, so it
// does not outlive the first process.
package bench
