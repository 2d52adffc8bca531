#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

constexpr size_t kLine = 64, kHugePage = 2 << 20;

size_t roundUp(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// Returns the eight bytes of a message at offset 8 * index. They depend on both numbers, so
// that misplaced messages and parts are detected. The Go code generates the same ones (data.go).
uint64_t word(uint64_t number, uint64_t index) {
  uint64_t x = (number + 1) * 0x9e3779b97f4a7c15 + index * 0xbf58476d1ce4e5b9;
  return x ^ (x >> 29);
}

}  // namespace

void Arena::resize(size_t slots, size_t size) {
  if (slots <= slots_.size() && size == size_) {
    return;
  }
  release();
  size_ = size;
  blocks_ ? allocateBlocks(slots) : map(slots);
  clear(slots);
}

void Arena::allocateBlocks(size_t slots) {
  for (size_t i = 0; i < slots; ++i) {
    void* p = std::malloc(std::max<size_t>(size_, 1));
    if (p == nullptr) {
      throw std::bad_alloc();
    }
    slots_.push_back(static_cast<uint8_t*>(p));
  }
}

void Arena::map(size_t slots) {
  const size_t stride = std::max(roundUp(size_, kLine), kLine);
  const size_t wanted = roundUp(slots * stride, kHugePage);
  void* p = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    throw std::bad_alloc();
  }
  data_ = p;
  mapped_ = wanted;
  madvise(data_, mapped_, MADV_HUGEPAGE);
  for (size_t i = 0; i < slots; ++i) {
    slots_.push_back(static_cast<uint8_t*>(data_) + i * stride);
  }
}

void Arena::release() {
  if (blocks_) {
    std::for_each(slots_.begin(), slots_.end(), std::free);
  } else if (data_ != nullptr) {
    munmap(data_, mapped_);
  }
  slots_.clear();
  data_ = nullptr;
}

void Arena::fill(size_t index, uint64_t number) {
  uint8_t* p = slot(index);
  const size_t words = size_ / 8;
  for (size_t i = 0; i < words; ++i) {
    uint64_t w = word(number, i);
    std::memcpy(p + 8 * i, &w, 8);
  }
  uint64_t last = word(number, words);
  std::memcpy(p + 8 * words, &last, size_ % 8);
}

std::string Arena::difference(size_t index, uint64_t number) const {
  const uint8_t* p = slot(index);
  const size_t words = size_ / 8;
  auto at = [number](size_t offset) {
    return "message " + std::to_string(number) + " differs in the 8 bytes at " + std::to_string(offset);
  };
  for (size_t i = 0; i < words; ++i) {
    uint64_t got;
    std::memcpy(&got, p + 8 * i, 8);
    if (got != word(number, i)) {
      return at(8 * i);
    }
  }
  uint64_t last = word(number, words);
  return std::memcmp(p + 8 * words, &last, size_ % 8) == 0 ? "" : at(8 * words);
}

void Arena::clear(size_t slots) {
  for (size_t i = 0; i < slots; ++i) {
    std::memset(slots_[i], 0, size_);
  }
}
