// A TensorPipe context with one transport and one channel, and helpers for messages that are
// not measured.
#pragma once

#include <future>
#include <memory>
#include <mutex>
#include <string>

#include <tensorpipe/tensorpipe.h>

#include "arena.h"
#include "flags.h"

using PipePtr = std::shared_ptr<tensorpipe::Pipe>;

// Creates a context for the flags; throws UsageError or UnviableError.
std::unique_ptr<tensorpipe::Context> makeContext(const Flags& flags);

// Returns a control message, which has metadata only.
tensorpipe::Message controlMessage(const std::string& text);

// Returns the message in a slot; with size 0 it has no tensor.
tensorpipe::Message message(const Arena& arena, size_t slot, uint64_t size, bool named);

// Returns the memory for such a message; throws if the descriptor does not match.
tensorpipe::Allocation allocation(const tensorpipe::Descriptor& descriptor, const Arena& arena, size_t slot, uint64_t size);

// Returns the CPU time of this process in ns.
int64_t cpuNs();

// The result of an operation on the library's threads, for which the main thread waits. Only
// the first result counts. Copies share their state: callbacks hold one, because some run
// after the wait has ended.
class Outcome {
 public:
  void done(std::string value) const;
  void fail(const std::string& error) const;
  bool failedOn(const tensorpipe::Error& error) const;  // fails the outcome if error is set

  // Waits for the result, at most once; throws the error if it failed.
  std::string wait() const { return state_->promise.get_future().get(); }

 private:
  struct State {
    std::promise<std::string> promise;
    std::once_flag once;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};
