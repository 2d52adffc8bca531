// The command line of tpbench.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A transport or channel exists but does not work on this machine.
struct UnviableError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Flags {
  std::string role;    // server, client, echo or hub
  std::string listen;  // URL at which a server or an echo listens
  std::string to;      // URL that a client dials
  std::string transport = "uv";
  std::string channel = "basic";
  uint64_t lanes = 16;  // connections of mpt_uv; PyTorch has 16

  // Memory of the messages: "huge", one mapping of huge pages if the system has them, or
  // "malloc", one block for each message.
  std::string buffers = "huge";

  uint64_t size = 8;        // bytes of the tensor of a message; 0: no tensor
  uint64_t depth = 8;       // messages in flight one way
  uint64_t batch = 1;       // messages between two verifications
  uint64_t roundTrips = 0;  // warm round trips
  uint64_t coldTrips = 0;   // round trips after an idle time
  uint64_t oneWay = 0;      // messages one way
  uint64_t idleUs = 2000;   // idle time before a cold trip
  bool named = false;       // the sender names the target device
};

// Parses the command line; throws UsageError.
Flags parseFlags(int argc, char** argv);

// The text to print after a UsageError.
extern const char* const kUsage;
