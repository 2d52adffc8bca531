// The random numbers of generated messages. generate.go must generate the same ones.
#pragma once

#include <cstdint>
#include <string>

#include "message.h"

// SplitMix64, with a state of one 64-bit word.
class Random {
 public:
  Random(uint64_t seed, uint64_t index) : state_(seed * 1000003 + index) {}

  uint64_t next();

  // The fixed number unless that is -1, else 0 to 4.
  uint64_t count(Fixed fixed);

  // Up to 31 bytes of any value.
  std::string text();

  // A blob of the fixed length unless that is -1, else of a length that the protocol
  // treats specially, or rarely of some MiB.
  Blob blob(Fixed fixed);

 private:
  uint64_t size();
  void fill(uint8_t* data, uint64_t length);

  uint64_t state_;
};
