// The end that asks and measures.
#pragma once

#include "flags.h"

// Makes all round trips and sends all messages that the flags ask for, and
// prints one JSON line:
//
//   rtt_ns, cold_ns   one sample per round trip
//   rtt_cpu_ns        CPU time of both processes for all trips of rtt_ns
//   one_way_ns        from before the first write of a batch until the receiver
//                     has said that it has all of it; summed over the batches
//   cpu_ns            CPU time of both processes in the same time
//   messages          counted in one_way_ns
//
// A round trip is from before the write until the read of the echo has completed;
// the clock is steady_clock, read on the library's thread, where the next trip
// starts from the callback of the last one; so does each write one way. One trip
// in a batch, and each cold one, starts on the main thread.
void measure(const Flags& flags);
