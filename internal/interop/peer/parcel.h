// Messages that own their memory: made from a seed, or received.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tensorpipe/tensorpipe.h>

#include "flags.h"

// Bytes with a length, not initialised.
class Blob {
 public:
  explicit Blob(size_t length) : data_(new uint8_t[length]), length_(length) {}

  uint8_t* data() const { return data_.get(); }
  size_t length() const { return length_; }

 private:
  std::unique_ptr<uint8_t[]> data_;
  size_t length_;
};

struct Part {
  std::string metadata;
  Blob blob;
  bool targeted = false;  // tensors only: the sender named cpu:0
};

// Parcel is a message and the memory it points to. It must outlive the
// operation that it was passed to, hence the shared pointers in all callbacks.
struct Parcel {
  std::string metadata;
  std::vector<Part> payloads;
  std::vector<Part> tensors;

  // Views for the library.
  tensorpipe::Message message() const;
  tensorpipe::Allocation allocation() const;

  // Sum of the lengths of payloads and tensors.
  uint64_t bytes() const;

  // One JSON object with the length and FNV-1a hash (64 bit) of all that is in
  // it.
  std::string json() const;

  // Where this differs from other, or "".
  std::string difference(const Parcel& other) const;
};

using ParcelPtr = std::shared_ptr<Parcel>;

// Makes message number index of the sequence that the flags describe.
ParcelPtr generate(const Flags& flags, uint64_t index);

// Makes room for a message that was announced.
ParcelPtr allocate(const tensorpipe::Descriptor& descriptor);
