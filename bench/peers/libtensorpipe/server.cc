#include "server.h"

#include <iostream>
#include <sstream>

#include "node.h"

namespace tp = tensorpipe;

namespace {

// Session serves a pipe. The client announces each batch by a control message,
//
//   echo|sink MESSAGES FIRST SIZE DEPTH NAMED
//
// where FIRST is the number of the first message. The session allocates memory and replies
// "ready". In an echo batch it sends each message back from the memory into which it was read; in
// a sink batch it only reads. After the last message it sends "done CPU_NS", at which a client
// that sends to a sink stops its clock. CPU_NS is the CPU time of this process since "ready". The
// client then sends "check", and the session compares every byte and replies "checked" or
// "error TEXT". It must not compare earlier, because the callbacks run on the thread of the
// library that sends "done", as in the library's own benchmark.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(PipePtr pipe, Outcome outcome, const std::string& buffers)
      : pipe_(std::move(pipe)), outcome_(std::move(outcome)), arena_(buffers) {}

  // Waits for the next batch. Only here may the client close the pipe.
  void listen() {
    auto self = shared_from_this();
    pipe_->readDescriptor([this, self](const tp::Error& error, tp::Descriptor descriptor) {
      if (error) {
        pipe_->close();
        outcome_.done("");
        return;
      }
      std::string order = descriptor.metadata;
      pipe_->read(tp::Allocation(), [this, self, order](const tp::Error& error) {
        if (failed(error)) {
          return;
        }
        if (order == "check") {
          std::string wrong = check();
          sendControl(wrong.empty() ? "checked" : "error " + wrong, [this, self] { listen(); });
        } else {
          begin(order);
        }
      });
    });
  }

 private:
  void begin(const std::string& order) {
    std::istringstream in(order);
    if (!(in >> kind_ >> messages_ >> first_ >> size_ >> depth_ >> named_) || messages_ == 0) {
      failed("no order: \"" + order + "\"");
      return;
    }
    arena_.resize(messages_, size_);
    arena_.clear(messages_);
    replies_.clear();
    if (kind_ == "echo") {
      for (uint64_t i = 0; i < messages_; ++i) {
        replies_.push_back(message(arena_, i, size_, named_));
      }
    }
    begun_ = finished_ = 0;
    cpu_ = cpuNs();
    auto self = shared_from_this();
    sendControl("ready", [] {});
    next();
  }

  // Receives the next message; while its bytes arrive it waits for the one after it.
  void next() {
    if (begun_ == messages_) {
      return;
    }
    auto self = shared_from_this();
    pipe_->readDescriptor([this, self](const tp::Error& error, tp::Descriptor descriptor) {
      if (failed(error)) {
        return;
      }
      uint64_t index = begun_++;
      tp::Allocation memory;
      try {
        memory = allocation(descriptor, arena_, index, size_);
      } catch (const std::exception& wrong) {
        failed(wrong.what());
        return;
      }
      pipe_->read(std::move(memory), [this, self, index](const tp::Error& error) {
        if (!failed(error)) {
          arrived(index);
        }
      });
      next();
    });
  }

  void arrived(uint64_t index) {
    if (kind_ != "echo") {
      finish();
      return;
    }
    auto self = shared_from_this();
    pipe_->write(std::move(replies_[index]), [this, self](const tp::Error& error) {
      if (!failed(error)) {
        finish();
      }
    });
  }

  // Counts a message, and reports after the last one.
  void finish() {
    if (++finished_ < messages_) {
      return;
    }
    auto self = shared_from_this();
    sendControl("done " + std::to_string(cpuNs() - cpu_), [this, self] { listen(); });
  }

  std::string check() const {
    for (uint64_t i = 0; i < messages_; ++i) {
      std::string wrong = arena_.difference(i, first_ + i);
      if (!wrong.empty()) {
        return wrong;
      }
    }
    return "";
  }

  void sendControl(const std::string& text, std::function<void()> then) {
    auto self = shared_from_this();
    pipe_->write(controlMessage(text), [this, self, then](const tp::Error& error) {
      if (!failed(error)) {
        then();
      }
    });
  }

  bool failed(const tp::Error& error) { return error && failed(error.what()); }

  bool failed(const std::string& why) {
    outcome_.fail(why);
    pipe_->close();
    return true;
  }

  const PipePtr pipe_;
  const Outcome outcome_;
  Arena arena_;
  std::vector<tp::Message> replies_;
  std::string kind_;
  uint64_t messages_ = 0, first_ = 0, size_ = 0, depth_ = 0;
  bool named_ = false;
  uint64_t begun_ = 0, finished_ = 0;
  int64_t cpu_ = 0;
};

}  // namespace

void serve(const Flags& flags) {
  Outcome outcome;
  auto context = makeContext(flags);
  auto listener = context->listen({flags.listen});
  listener->accept([outcome, buffers = flags.buffers](const tp::Error& error, PipePtr pipe) {
    if (!outcome.failedOn(error)) {
      std::make_shared<Session>(std::move(pipe), outcome, buffers)->listen();
    }
  });
  std::cout << listener->url(flags.transport) << std::endl;
  outcome.wait();
}
