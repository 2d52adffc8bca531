// The command line of tpbench.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What the flags name exists, but does not work on this machine.
struct UnviableError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Flags {
  std::string role;    // server or client
  std::string listen;  // URL, of a server
  std::string to;      // URL, of a client
  std::string transport = "uv";
  std::string channel = "basic";
  uint64_t lanes = 16;  // connections of mpt_uv, as PyTorch has them

  // Memory of the messages: "huge", one mapping of huge pages where the system
  // has them, or "malloc", one block for each message.
  std::string buffers = "huge";

  uint64_t size = 8;        // bytes of the one tensor; 0: messages without any
  uint64_t depth = 8;       // messages in flight one way
  uint64_t batch = 1;       // messages between two pauses for checking
  uint64_t roundTrips = 0;  // round trips, warm
  uint64_t coldTrips = 0;   // round trips after idleness
  uint64_t oneWay = 0;      // messages one way
  uint64_t idleUs = 2000;   // idleness before a cold trip
  bool named = false;       // the sender names the target device
};

// Reads the command line; throws UsageError.
Flags parseFlags(int argc, char** argv);

// What to print when it cannot be read.
extern const char* const kUsage;
