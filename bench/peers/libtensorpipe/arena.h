// Memory for the messages of a batch, and what is written into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Slots of equal size, all in one mapping of huge pages where the system has
// them, or each a block of malloc: a message is sent from one slot and read into
// another, so no message of a batch shares memory with the one before.
class Arena {
 public:
  // buffers as in Flags.
  explicit Arena(const std::string& buffers) : blocks_(buffers == "malloc") {}
  ~Arena() { release(); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Makes room for slots of size bytes each, all pages touched.
  void resize(size_t slots, size_t size);

  uint8_t* slot(size_t index) const { return slots_[index]; }

  // Writes what message number has to say into a slot.
  void fill(size_t index, uint64_t number);

  // Says where a slot differs from what fill wrote, or "".
  std::string difference(size_t index, uint64_t number) const;

  // Spoils the slots, so that bytes of an earlier batch cannot pass for new.
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
