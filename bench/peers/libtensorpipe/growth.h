// Many pipes: a hub opens them, and processes with the role echo send back all their messages.
#pragma once

#include <stdexcept>

#include "flags.h"

// Bytes differ from those that were sent.
struct CorruptError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Prints {"urls":[URL]}, accepts pipes and sends back every message of each, and does not return.
void serveEchoes(const Flags& flags);

// Prints {}, does what each line of stdin requests, and answers with one line of JSON. It exits the
// process when stdin ends. A line is VERB URL COUNT MICROS, in double quotes:
//
//   open   opens COUNT pipes to URL, each of which makes a round trip
//   one    makes round trips on the first pipe: COUNT, or fewer if that takes MICROS
//   turn   makes them on all pipes in turn
//   trim   returns unused memory to the system
//
// The answer has the times of one and turn in rtt_ns.
[[noreturn]] void runHub(const Flags& flags);
