#include "random.h"

#include <algorithm>
#include <cstring>

uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

uint64_t Random::count(Fixed fixed) {
  uint64_t drawn = next() % 5;
  return fixed >= 0 ? fixed : drawn;
}

std::string Random::text() {
  std::string out(next() % 32, '\0');
  fill(reinterpret_cast<uint8_t*>(&out[0]), out.size());
  return out;
}

Blob Random::blob(Fixed fixed) {
  uint64_t drawn = size();
  Blob out(fixed >= 0 ? fixed : drawn);
  fill(out.data(), out.length());
  return out;
}

uint64_t Random::size() {
  static const uint64_t kSizes[] = {0, 1, 8, 4096, 65536};
  uint64_t drawn = next() % 16;
  return drawn < 15 ? kSizes[drawn / 3] : (1 << 20) + next() % (3 << 20);
}

// Fills 8 bytes at a time, little-endian; the last word is truncated.
void Random::fill(uint8_t* data, uint64_t length) {
  for (uint64_t at = 0; at < length; at += 8) {
    uint64_t word = next();
    std::memcpy(data + at, &word, std::min<uint64_t>(8, length - at));
  }
}
