#include "node.h"

#include <sys/resource.h>

namespace tp = tensorpipe;

namespace {

const tp::Device kCpu(tp::kCpuDeviceType, 0);

std::shared_ptr<tp::channel::Context> createLanes(uint64_t lanes) {
  std::vector<std::shared_ptr<tp::transport::Context>> contexts;
  std::vector<std::shared_ptr<tp::transport::Listener>> listeners;
  for (uint64_t i = 0; i < lanes; ++i) {
    contexts.push_back(tp::transport::uv::create());
    listeners.push_back(contexts.back()->listen("127.0.0.1:0"));
  }
  return tp::channel::mpt::create(std::move(contexts), std::move(listeners));
}

std::shared_ptr<tp::channel::Context> createChannel(const std::string& name, uint64_t lanes) {
  if (name == "basic") {
    return tp::channel::basic::create();
  }
  if (name == "mpt_uv") {
    return createLanes(lanes);
  }
  if (name == "cma") {
    return tp::channel::cma::create();
  }
  throw UsageError("unknown channel " + name);
}

std::shared_ptr<tp::transport::Context> createTransport(const std::string& name) {
  if (name == "uv") {
    return tp::transport::uv::create();
  }
  if (name == "shm") {
    return tp::transport::shm::create();
  }
  throw UsageError("unknown transport " + name);
}

}  // namespace

std::unique_ptr<tp::Context> makeContext(const Flags& flags) {
  auto transport = createTransport(flags.transport);
  auto channel = createChannel(flags.channel, flags.lanes);
  // The library would silently omit a transport or channel that does not work here.
  if (!transport->isViable() || !channel->isViable()) {
    throw UnviableError(flags.transport + " with " + flags.channel + " does not work on this machine");
  }
  auto context = std::make_unique<tp::Context>(tp::ContextOptions().name("tpbench"));
  context->registerTransport(0, flags.transport, std::move(transport));
  context->registerChannel(1000, flags.channel, std::move(channel));
  return context;
}

tp::Message controlMessage(const std::string& text) {
  tp::Message out;
  out.metadata = text;
  return out;
}

tp::Message message(const Arena& arena, size_t slot, uint64_t size, bool named) {
  tp::Message out;
  if (size > 0) {
    tp::Message::Tensor tensor;
    tensor.buffer = tp::CpuBuffer{arena.slot(slot)};
    tensor.length = size;
    if (named) {
      tensor.targetDevice = kCpu;
    }
    out.tensors.push_back(std::move(tensor));
  }
  return out;
}

tp::Allocation allocation(const tp::Descriptor& descriptor, const Arena& arena, size_t slot, uint64_t size) {
  uint64_t got = descriptor.tensors.empty() ? 0 : descriptor.tensors[0].length;
  if (descriptor.tensors.size() > 1 || got != size) {
    throw std::runtime_error("unexpected message: \"" + descriptor.metadata + "\"");
  }
  tp::Allocation out;
  if (size > 0) {
    out.tensors.push_back({tp::CpuBuffer{arena.slot(slot)}});
  }
  return out;
}

int64_t cpuNs() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  int64_t seconds = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec;
  int64_t micros = usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
  return seconds * 1000000000 + micros * 1000;
}

void Outcome::done(std::string value) const {
  std::call_once(state_->once, [&] { state_->promise.set_value(std::move(value)); });
}

void Outcome::fail(const std::string& error) const {
  std::call_once(state_->once, [&] { state_->promise.set_exception(std::make_exception_ptr(std::runtime_error(error))); });
}

bool Outcome::failedOn(const tp::Error& error) const {
  if (error) {
    fail(error.what());
  }
  return bool(error);
}
