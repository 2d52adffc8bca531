// The numbers that messages are made from. generate.go makes the same ones: a
// change here is a change there.
#pragma once

#include <cstdint>
#include <string>

#include "parcel.h"

// SplitMix64, whose whole state is one word.
class Random {
 public:
  Random(uint64_t seed, uint64_t index) : state_(seed * 1000003 + index) {}

  uint64_t next();

  // The fixed number if there is one, else 0 to 4.
  uint64_t count(Fixed fixed);

  // Up to 31 bytes of any value.
  std::string text();

  // The fixed length if there is one, else one of those that matter to the
  // protocol, or rarely some MiB.
  Blob blob(Fixed fixed);

 private:
  uint64_t size();
  void fill(uint8_t* data, uint64_t length);

  uint64_t state_;
};
