#include "message.h"

#include <cstdio>
#include <cstring>

#include "random.h"

namespace tp = tensorpipe;

namespace {

const tp::Device kCpu(tp::kCpuDeviceType, 0);

std::string fnv1a(const void* data, size_t length) {
  uint64_t hash = 0xcbf29ce484222325;
  auto bytes = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < length; ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3;
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::string jsonBytes(const void* data, size_t length) {
  return "\"length\":" + std::to_string(length) + ",\"fnv1a\":\"" + fnv1a(data, length) + "\"";
}

std::string jsonText(const std::string& text) {
  return "{" + jsonBytes(text.data(), text.size()) + "}";
}

std::string jsonParts(const std::vector<Part>& parts) {
  std::string out;
  for (const auto& part : parts) {
    out += out.empty() ? "{" : ",{";
    out += jsonBytes(part.blob.data(), part.blob.length());
    out += ",\"metadata\":" + jsonText(part.metadata);
    out += std::string(",\"targeted\":") + (part.targeted ? "true" : "false") + "}";
  }
  return "[" + out + "]";
}

std::string difference(const char* what, const std::vector<Part>& a, const std::vector<Part>& b) {
  if (a.size() != b.size()) {
    return std::string("number of ") + what;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    std::string where = " of " + std::string(what) + " " + std::to_string(i);
    if (a[i].metadata != b[i].metadata) {
      return "metadata" + where;
    }
    if (a[i].targeted != b[i].targeted) {
      return "target" + where;
    }
    if (a[i].blob.length() != b[i].blob.length()) {
      return "length" + where;
    }
    if (std::memcmp(a[i].blob.data(), b[i].blob.data(), a[i].blob.length()) != 0) {
      return "bytes" + where;
    }
  }
  return "";
}

// Whether the sender named cpu:0. Throws if it named another device.
bool targeted(const tp::Descriptor::Tensor& tensor) {
  if (!tensor.targetDevice.has_value()) {
    return false;
  }
  if (!(*tensor.targetDevice == kCpu)) {
    throw std::runtime_error("tensor for a device that is not cpu:0");
  }
  return true;
}

}  // namespace

tp::Message OwnedMessage::view() const {
  tp::Message out;
  out.metadata = metadata;
  for (const auto& part : payloads) {
    out.payloads.push_back({part.blob.data(), part.blob.length(), part.metadata});
  }
  for (const auto& part : tensors) {
    tp::Message::Tensor tensor;
    tensor.buffer = tp::CpuBuffer{part.blob.data()};
    tensor.length = part.blob.length();
    tensor.metadata = part.metadata;
    if (part.targeted) {
      tensor.targetDevice = kCpu;
    }
    out.tensors.push_back(std::move(tensor));
  }
  return out;
}

tp::Allocation OwnedMessage::allocation() const {
  tp::Allocation out;
  for (const auto& part : payloads) {
    out.payloads.push_back({part.blob.data()});
  }
  for (const auto& part : tensors) {
    out.tensors.push_back({tp::CpuBuffer{part.blob.data()}});
  }
  return out;
}

uint64_t OwnedMessage::bytes() const {
  uint64_t sum = 0;
  for (const auto& part : payloads) {
    sum += part.blob.length();
  }
  for (const auto& part : tensors) {
    sum += part.blob.length();
  }
  return sum;
}

std::string OwnedMessage::json() const {
  return "{\"metadata\":" + jsonText(metadata) + ",\"payloads\":" + jsonParts(payloads) +
      ",\"tensors\":" + jsonParts(tensors) + "}";
}

std::string OwnedMessage::difference(const OwnedMessage& other) const {
  if (metadata != other.metadata) {
    return "metadata of message";
  }
  std::string found = ::difference("payload", payloads, other.payloads);
  return found.empty() ? ::difference("tensor", tensors, other.tensors) : found;
}

MessagePtr generate(const Flags& flags, uint64_t index) {
  Random random(flags.seed, index);
  Fixed size = flags.sizes.empty() ? -1 : Fixed(flags.sizes[index % flags.sizes.size()]);
  auto message = std::make_shared<OwnedMessage>();
  auto parts = [&](Fixed count, std::vector<Part>& out) {
    for (uint64_t n = random.count(count); n > 0; --n) {
      std::string metadata = random.text();
      out.push_back({std::move(metadata), random.blob(size)});
    }
  };
  message->metadata = random.text();
  parts(flags.payloads, message->payloads);
  parts(flags.tensors, message->tensors);
  for (auto& tensor : message->tensors) {
    bool odd = random.next() & 1;
    tensor.targeted = flags.targets == Targets::kMixed ? odd : flags.targets == Targets::kAll;
  }
  return message;
}

MessagePtr allocate(const tp::Descriptor& descriptor) {
  auto message = std::make_shared<OwnedMessage>();
  message->metadata = descriptor.metadata;
  for (const auto& payload : descriptor.payloads) {
    message->payloads.push_back({payload.metadata, Blob(payload.length)});
  }
  for (const auto& tensor : descriptor.tensors) {
    if (!(tensor.sourceDevice == kCpu)) {
      throw std::runtime_error("tensor from a device that is not cpu:0");
    }
    message->tensors.push_back({tensor.metadata, Blob(tensor.length), targeted(tensor)});
  }
  return message;
}
