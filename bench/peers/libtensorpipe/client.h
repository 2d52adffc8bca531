// The end that sends requests and measures.
#pragma once

#include "flags.h"

// Makes all round trips and sends all messages that the flags request, and prints one
// line of JSON:
//
//   rtt_ns, cold_ns   one sample per round trip
//   rtt_cpu_ns        CPU time of both processes for all trips of rtt_ns
//   one_way_ns        from before the first write of a batch until the receiver has
//                     confirmed all messages; summed over the batches
//   cpu_ns            CPU time of both processes in the same time
//   messages          number of messages of one_way_ns
//
// A round trip is measured from before the write until the read of the echo has completed,
// with steady_clock on the library's thread. The callback of one trip starts the next one;
// one-way writes are started in the same way. The first trip of a batch, and each cold one,
// is started on the main thread.
void measure(const Flags& flags);
