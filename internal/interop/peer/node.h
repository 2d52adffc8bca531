// A TensorPipe context with PyTorch's names and priorities.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <tensorpipe/tensorpipe.h>

#include "flags.h"

using PipePtr = std::shared_ptr<tensorpipe::Pipe>;

class Node {
 public:
  explicit Node(const Flags& flags);

  // Listens, calls serve with every accepted pipe on a thread of the library, and
  // returns the URLs to dial.
  std::string listen(std::function<void(PipePtr)> serve);

  PipePtr connect();

 private:
  void accept();

  const Flags& flags_;
  tensorpipe::Context context_;
  std::shared_ptr<tensorpipe::Listener> listener_;
  std::function<void(PipePtr)> serve_;
};
