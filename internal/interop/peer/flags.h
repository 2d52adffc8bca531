// The command line of tppeer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// How the tensors of a message name the device they should arrive on.
enum class Targets { kMixed, kAll, kNone };

// A number that was given, or -1 if none was.
using Fixed = int64_t;

struct Flags {
  std::string role;
  std::vector<std::string> listen;  // URLs, or empty
  std::string to;                   // URL, or empty
  std::string name = "tppeer";
  std::vector<std::string> transports{"uv"};
  std::vector<std::string> channels{"basic"};
  int lanes = 16;

  Fixed count = -1;
  uint64_t seed = 1;
  std::vector<uint64_t> sizes;  // of the parts of each message, in turn, or empty
  Fixed payloads = -1;
  Fixed tensors = -1;
  Targets targets = Targets::kMixed;
  bool both = false;
};

// Reads the command line; throws UsageError.
Flags parseFlags(int argc, char** argv);

// What to print when it cannot be read.
extern const char* const kUsage;
