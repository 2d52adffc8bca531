// Messages that own their memory: generated, or received.
// Messages that own their memory: made from a seed, or received.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tensorpipe/tensorpipe.h>

#include "flags.h"

// Uninitialised bytes.
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

// OwnedMessage is a message with the memory of its parts. It must outlive the operations that use
// it, hence the shared pointers in all callbacks.
struct OwnedMessage {
  std::string metadata;
  std::vector<Part> payloads;
  std::vector<Part> tensors;

  // Views for the library.
  tensorpipe::Message view() const;
  tensorpipe::Allocation allocation() const;

  // Sum of the lengths of payloads and tensors.
  uint64_t bytes() const;

  // One JSON object with the length and 64-bit FNV-1a hash of each part.
  std::string json() const;

  // Where this differs from other, or "".
  std::string difference(const OwnedMessage& other) const;
};

using MessagePtr = std::shared_ptr<OwnedMessage>;

// Generates the message with that index of the sequence that the flags describe.
MessagePtr generate(const Flags& flags, uint64_t index);

// Allocates memory for a message that is to be received.
MessagePtr allocate(const tensorpipe::Descriptor& descriptor);
