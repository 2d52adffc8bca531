// Memory for the messages of a batch, and their contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Slots of equal size, all in one mapping of huge pages if the system has them, or each a
// block of malloc. A message is sent from one slot and read into another, so no two messages
// of a batch share memory.
class Arena {
 public:
  // buffers is that of Flags.
  explicit Arena(const std::string& buffers) : blocks_(buffers == "malloc") {}
  ~Arena() { release(); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Provides slots of size bytes each, with all pages touched.
  void resize(size_t slots, size_t size);

  uint8_t* slot(size_t index) const { return slots_[index]; }

  // Writes the contents of a message into a slot.
  void fill(size_t index, uint64_t number);

  // Returns where a slot differs from the output of fill, or "".
  std::string difference(size_t index, uint64_t number) const;

  // Zeroes the slots, so that bytes of an earlier batch are not taken for new ones.
  void clear(size_t slots);

 private:
  void allocateBlocks(size_t slots);
  void map(size_t slots);
  void release();

  const bool blocks_;
  std::vector<uint8_t*> slots_;
  void* data_ = nullptr;  // the mapping
  size_t mapped_ = 0, size_ = 0;
};
