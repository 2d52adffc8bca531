#include "server.h"

#include <iostream>
#include <sstream>

#include "node.h"

namespace tp = tensorpipe;

namespace {

// Session serves a pipe. The client announces each batch in words,
//
//   echo|sink MESSAGES FIRST SIZE DEPTH NAMED
//
// where FIRST is the number of the first message. The session makes room and
// says "ready". To echo is to send each message back from the memory that it was
// read into; a sink only reads. Behind the last message comes "done CPU_NS", which
// ends the clock of a client that sends to a sink. CPU_NS is what this process
// used from "ready" until then. When its clock stands the client says "check", and
// the session looks at every byte and says "checked" or "error TEXT". It must not
// look before it is asked: all of it happens in callbacks on the thread of the
// library that would have to send "done", as in its own benchmark.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(PipePtr pipe, Outcome outcome, const std::string& buffers)
      : pipe_(std::move(pipe)), outcome_(std::move(outcome)), arena_(buffers) {}

  // Waits for the next batch. Here the client may end the pipe.
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
          say(wrong.empty() ? "checked" : "error " + wrong, [this, self] { listen(); });
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
    say("ready", [] {});
    next();
  }

  // Takes the next message; while it is on its way it waits for the one behind.
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

  // Counts a message; behind the last one it reports.
  void finish() {
    if (++finished_ < messages_) {
      return;
    }
    auto self = shared_from_this();
    say("done " + std::to_string(cpuNs() - cpu_), [this, self] { listen(); });
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

  void say(const std::string& text, std::function<void()> then) {
    auto self = shared_from_this();
    pipe_->write(words(text), [this, self, then](const tp::Error& error) {
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
