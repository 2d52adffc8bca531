// A TensorPipe context with one transport and one channel, and the parts of a
// conversation that are not measured.
#pragma once

#include <future>
#include <memory>
#include <mutex>
#include <string>

#include <tensorpipe/tensorpipe.h>

#include "arena.h"
#include "flags.h"

using PipePtr = std::shared_ptr<tensorpipe::Pipe>;

// Makes a context as the flags say; throws UsageError or UnviableError.
std::unique_ptr<tensorpipe::Context> makeContext(const Flags& flags);

// A message of words and nothing else.
tensorpipe::Message words(const std::string& text);

// The message in a slot; size 0 means one without a tensor.
tensorpipe::Message message(const Arena& arena, size_t slot, uint64_t size, bool named);

// Where to read such a message; throws if the description is of another one.
tensorpipe::Allocation allocation(const tensorpipe::Descriptor& descriptor, const Arena& arena, size_t slot, uint64_t size);

// CPU time of this process so far, in ns.
int64_t cpuNs();

// The end of something that happens on the library's threads, for the main
// thread to wait for. Only the first call counts. Copies are the same outcome:
// callbacks hold one, since some come when nobody waits any more.
class Outcome {
 public:
  void done(std::string value) const;
  void fail(const std::string& error) const;
  bool failedOn(const tensorpipe::Error& error) const;  // fails if there is an error

  // Waits, once; throws the failure.
  std::string wait() const { return state_->promise.get_future().get(); }

 private:
  struct State {
    std::promise<std::string> promise;
    std::once_flag once;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};
