// Memory for the messages of a batch, and what is written into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// Slots of equal size, in one mapping of huge pages where the system has them:
// a message is sent from one slot and read into another, so no message of a
// batch shares memory with the one before.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Makes room for slots of size bytes each, all pages touched.
  void resize(size_t slots, size_t size);

  uint8_t* slot(size_t index) const { return data_ + index * stride_; }

  // Writes what message number has to say into a slot.
  void fill(size_t index, uint64_t number);

  // Says where a slot differs from what fill wrote, or "".
  std::string difference(size_t index, uint64_t number) const;

  // Spoils the slots, so that bytes of an earlier batch cannot pass for new.
  void clear(size_t slots);

 private:
  uint8_t* data_ = nullptr;
  size_t mapped_ = 0, stride_ = 0, size_ = 0;
};
