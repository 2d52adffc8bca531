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

// Which tensors of a message name their target device.
enum class Targets { kMixed, kAll, kNone };

// The number of a flag, or -1 without that flag.
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
  std::vector<uint64_t> sizes;  // of the parts of successive messages, cyclically, or empty
  Fixed payloads = -1;
  Fixed tensors = -1;
  Targets targets = Targets::kMixed;
  bool both = false;
};

// Parses the command line. Throws UsageError.
Flags parseFlags(int argc, char** argv);

// The usage text.
extern const char* const kUsage;
